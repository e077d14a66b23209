#include "engine/chat_session.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "chat";

}  // namespace

ChatSession::ChatSession(const Model& model, Engine& engine, ChatRequest request)
    : model_(model), engine_(engine), request_(std::move(request)) {}

void ChatSession::add(ChatMessage message) {
  message.index = static_cast<int64_t>(request_.messages.size());
  request_.messages.push_back(std::move(message));
}

void ChatSession::add_user(std::string text) {
  ChatMessage message;
  message.role = Role::user;
  message.content.push_back(std::move(text));
  add(std::move(message));
}

void ChatSession::take_back(size_t count) {
  if (count < answered_ || count > request_.messages.size()) {
    fail(ErrorKind::internal, kPlace, "wanted to keep {} to {} messages, found {}", answered_, request_.messages.size(), count);
  }
  request_.messages.resize(count);
}

std::vector<TokenId> ChatSession::prompt_ids(const ChatPrompt& prompt) const {
  if (answered_ == 0) return prompt.ids;
  // The ids up to the last answer stay, whatever ids the model chose to write it with. What is rendered behind it does not
  // depend on those.
  ChatRequest past = request_;
  past.messages.resize(answered_);
  past.tool_choice = {};
  past.response_format = {};
  past.add_generation_prompt = false;
  past.continue_final = false;
  const std::vector<Segment> before = model_.format().render_segments(past).segments;
  const bool extends =
      before.size() <= prompt.segments.size() && std::equal(before.begin(), before.end(), prompt.segments.begin());
  if (!extends) return prompt.ids;
  const std::vector<TokenId> fresh = model_.format().tokenizer().encode(std::span(prompt.segments).subspan(before.size()));
  std::vector<TokenId> ids = ids_;
  ids.insert(ids.end(), fresh.begin(), fresh.end());
  return ids;
}

TurnResult ChatSession::answer(const AnswerOptions& options) {
  const ChatPrompt prompt = model_.format().render(request_);
  std::vector<TokenId> ids = prompt_ids(prompt);
  std::vector<std::string> notes = prompt.notes;
  const std::optional<grammar::AnswerRules> rules = grammar::AnswerRules::of(request_, model_.vocabulary(), notes);
  TurnOptions turn_options = options.turn;
  if (rules) turn_options.rules = &*rules;
  const auto turn = std::make_shared<Turn>(model_, prompt, turn_options);
  const RequestId id = engine_.submit(turn->request(ids), turn);
  const std::optional<Failure> failure = guard([&] { drive(id, *turn, options); });
  if (failure) {
    engine_.cancel(id);
    failure->raise();
  }
  TurnResult result = turn->result();
  result.notes = std::move(notes);
  const std::vector<TokenId> answered = turn->whole_turn();
  ids_ = std::move(ids);
  ids_.insert(ids_.end(), answered.begin(), answered.end());
  keep(result);
  return result;
}

void ChatSession::drive(RequestId id, Turn& turn, const AnswerOptions& options) {
  while (!turn.over()) {
    if (options.cancelled != nullptr && options.cancelled->load()) {
      engine_.cancel(id);
    } else {
      engine_.step();
    }
    const std::optional<Turn::PromptProgress> progress = turn.take_prompt_progress();
    if (options.on_prompt && progress) options.on_prompt(progress->done, progress->total);
    for (const ChatEvent& event : turn.take_events()) {
      if (options.on_event) options.on_event(event);
    }
  }
}

void ChatSession::keep(const TurnResult& result) {
  if (request_.continue_final) {
    // The model went on with the last message.
    request_.messages.back().content.push_back(result.answer.content);
    request_.continue_final = false;
  } else {
    ChatMessage message;
    message.role = Role::assistant;
    message.content.push_back(result.answer.content);
    message.reasoning = result.answer.reasoning;
    for (const ToolCall& call : result.answer.tool_calls) {
      RequestToolCall& kept = message.tool_calls.emplace_back();
      kept.id = call.id;
      kept.name = call.name;
      kept.arguments = call.arguments;
    }
    add(std::move(message));
  }
  answered_ = request_.messages.size();
}

}  // namespace weft
