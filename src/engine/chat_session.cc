#include "engine/chat_session.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "chat";

}  // namespace

ChatSession::ChatSession(Model& model, ChatRequest request)
    : model_(model), request_(std::move(request)), sequence_(model.executor()) {}

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

std::vector<TokenId> ChatSession::new_ids(const ChatPrompt& prompt) const {
  if (answered_ == 0) return prompt.ids;
  // Everything up to the last answer is in the state already, whatever ids the model chose to write it with. What is rendered
  // behind it does not depend on those.
  ChatRequest past = request_;
  past.messages.resize(answered_);
  past.tool_choice = {};
  past.response_format = {};
  past.add_generation_prompt = false;
  past.continue_final = false;
  const std::vector<Segment> before = render_xtml(past).segments;
  const bool extends =
      before.size() <= prompt.segments.size() && std::equal(before.begin(), before.end(), prompt.segments.begin());
  if (!extends) fail(ErrorKind::internal, kPlace, "the rendered history is not the beginning of the rendered conversation");
  return model_.format().tokenizer().encode(std::span(prompt.segments).subspan(before.size()));
}

TurnResult ChatSession::answer(const AnswerOptions& options) {
  if (failed_) fail(ErrorKind::unavailable, kPlace, "an earlier step of this conversation failed; start a new one");
  if (options.prefill_chunk < 1) {
    fail(ErrorKind::bad_input, "prefill chunk", "wanted at least 1 token, found {}", options.prefill_chunk);
  }
  const ChatPrompt prompt = model_.format().render(request_);
  std::vector<TokenId> ids = ids_;
  const std::vector<TokenId> fresh = new_ids(prompt);
  ids.insert(ids.end(), fresh.begin(), fresh.end());
  TurnOptions turn_options = options.turn;
  std::vector<std::string> notes = prompt.notes;
  const std::optional<grammar::AnswerRules> rules = grammar::AnswerRules::of(request_, model_.vocabulary(), notes);
  if (rules) turn_options.rules = &*rules;
  Turn turn(model_, sequence_.id(), consumed(), ids, prompt, turn_options);

  AnswerBuilder builder;
  const TokenCount before = consumed();
  if (const std::optional<Failure> failure = guard([&] { drive(turn, options, builder); })) {
    failed_ = consumed() != before;
    failure->raise();
  }
  ids_ = std::move(ids);

  TurnResult result;
  result.answer = builder.answer();
  result.end = turn.end();
  result.statistics = turn.statistics();
  result.counters = turn.counters();
  result.sampling = options.turn.sampling;
  result.ids.assign(turn.generated().begin(), turn.generated().end());
  result.notes = std::move(notes);

  const std::vector<TokenId> rest = turn.unconsumed();
  ids_.insert(ids_.end(), result.ids.begin(), result.ids.end());
  ids_.resize(static_cast<size_t>(consumed().value));
  ids_.insert(ids_.end(), rest.begin(), rest.end());
  keep(result);
  return result;
}

void ChatSession::drive(Turn& turn, const AnswerOptions& options, AnswerBuilder& builder) {
  Executor& executor = model_.executor();
  // A further step keeps the stages busy; on one stage it would only delay Ctrl-C.
  const size_t stages = model_.stages().size();
  const size_t max_open = stages > 1 ? stages + 1 : 1;
  std::deque<int64_t> open;  // prompt tokens submitted up to each open step
  std::optional<Failure> failure;
  const auto stopping = [&] { return failure || (options.cancelled != nullptr && options.cancelled->load()); };
  for (;;) {
    while (open.size() < max_open && !stopping()) {
      std::optional<Rows> rows = turn.next_rows(options.prefill_chunk);
      if (!rows) break;
      Step step;
      step.rows.push_back(std::move(*rows));
      executor.submit(std::move(step));
      open.push_back(turn.prompt_tokens_submitted());
    }
    if (open.empty()) break;
    const Completion completion = executor.next();
    const int64_t done = open.front();
    open.pop_front();
    if (completion.failure && !failure) failure = completion.failure;
    if (failure) continue;
    turn.accept(completion.results.front());
    failure = guard([&] {
      if (options.on_prompt && turn.generated().empty()) options.on_prompt(done, turn.prompt_tokens_to_submit());
      for (const ChatEvent& event : turn.take_events()) {
        builder.add(event);
        if (options.on_event) options.on_event(event);
      }
    });
  }
  if (failure) failure->raise();
  if (turn.over()) return;
  turn.cancel();
  for (const ChatEvent& event : turn.take_events()) {
    builder.add(event);
    if (options.on_event) options.on_event(event);
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
