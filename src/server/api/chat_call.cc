#include "server/api/chat_call.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "server/api/prompt_fields.h"
#include "server/api/request_fields.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kMostTopLogprobs = 20;

// Fields that this server carries out or that ask for nothing, beside those of the prompt and of sampling.
constexpr std::string_view kCarriedOut[] = {"n",
                                            "stop",
                                            "stop_token_ids",
                                            "ignore_eos",
                                            "min_tokens",
                                            "logit_bias",
                                            "logprobs",
                                            "top_logprobs",
                                            "stream",
                                            "stream_options",
                                            "parallel_tool_calls",
                                            "include_reasoning",
                                            "store",
                                            "service_tier",
                                            "verbosity",
                                            "prompt_cache_retention",
                                            "prediction"};

// Fields of older or other kinds of requests, where an answer without them would be another one.
void check_refused(const RequestFields& fields) {
  const auto refuse = [&](const char* key, const char* hint) {
    const JsonValue* value = fields.get(key);
    if (value == nullptr || (value->is(Kind::array) && value->items.empty())) return;
    throw bad_request(fmt::format("{}: {}", key, hint), key, "unsupported_value");
  };
  refuse("functions", "is not supported: use tools");
  refuse("function_call", "is not supported: use tool_choice");
  refuse("audio", "this model writes text only");
  if (const JsonValue* modalities = fields.get("modalities", Kind::array)) {
    for (const JsonValue& item : modalities->items) {
      if (item.text != "text") {
        throw bad_request(fmt::format("modalities: wanted text, found {}", shown(&item)), "modalities", "unsupported_value");
      }
    }
  }
}

bool strict_schema(const RequestFields& fields) {
  const JsonValue* format = fields.get("response_format");
  const JsonValue* schema = format != nullptr && format->is(Kind::object) ? format->find("json_schema") : nullptr;
  const JsonValue* strict = schema != nullptr && schema->is(Kind::object) ? schema->find("strict") : nullptr;
  return strict != nullptr && strict->is(Kind::boolean) && strict->boolean;
}

std::optional<grammar::AnswerRules> rules_of(const ChatRequest& request, const RequestFields& fields, const Model& model,
                                             std::vector<std::string>& notes) {
  std::optional<grammar::AnswerRules> rules;
  const std::optional<Failure> failure = guard([&] { rules = grammar::AnswerRules::of(request, model.vocabulary(), notes); });
  if (!failure) return rules;
  const bool relaxed = request.response_format.kind == ResponseFormat::Kind::json_schema && !strict_schema(fields);
  if (!relaxed || (failure->kind != ErrorKind::unsupported && failure->kind != ErrorKind::bad_input)) failure->raise();
  // Without `strict` the schema stands in the prompt alone (8.1).
  notes.push_back("response_format is not enforced: " + error_of(*failure).message);
  ChatRequest without = request;
  without.response_format = {};
  return grammar::AnswerRules::of(without, model.vocabulary(), notes);
}

// Whose ids are the vocabulary's.
ChatPrompt checked(ChatPrompt prompt, const Service& service) {
  const TokenId size = service.model().format().tokenizer().vocab_size();
  for (const TokenId id : prompt.ids) {
    if (id < 0 || id >= size) throw bad_request(fmt::format("the prompt: wanted ids below {}, found {}", size, id));
  }
  return prompt;
}

// What is too long for the context is refused as soon as that is certain.
ChatPrompt rendered(const ChatRequest& request, const Service& service) {
  const ChatFormat& format = service.model().format();
  RenderedPrompt rendered = format.render_segments(request);
  LimitedIds encoded = format.tokenizer().encode_limited(rendered.segments, service.most_prompt());
  service.check_length(encoded.count, "messages", encoded.cut);
  return checked(ChatFormat::prompt(request, std::move(rendered), std::move(encoded.ids)), service);
}

}  // namespace

TurnOptions ChatCall::turn_options(int64_t choice) const {
  TurnOptions options;
  options.sampling = generation.sampling_of(choice);
  options.max_tokens = generation.max_tokens;
  options.rules = rules ? &*rules : nullptr;
  options.bias = generation.bias;
  options.stop = generation.stop;
  options.end = generation.end;
  options.max_calls = max_calls;
  options.logprobs = logprobs;
  options.top_logprobs = top_logprobs;
  return options;
}

ChatPrompt render_chat(const JsonValue& root, const Service& service) {
  return checked(service.model().format().render(read_chat_request(root)), service);
}

std::shared_ptr<const ChatCall> read_chat_call(const JsonValue& root, const Service& service) {
  const RequestFields fields(root);
  auto call = std::make_shared<ChatCall>();
  call->generation = read_generation(root, service);
  check_refused(fields);
  fields.check("verbosity", Kind::string);
  fields.check("prediction", Kind::object);
  fields.check("prompt_cache_retention", Kind::string);
  fields.check("web_search_options", Kind::object);
  call->logprobs = fields.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, kMostTopLogprobs);
  if (top && *top > 0 && !call->logprobs) throw bad_request("top_logprobs: wanted logprobs: true beside it", "top_logprobs");
  call->top_logprobs = top.value_or(0);
  call->include_reasoning = fields.boolean("include_reasoning").value_or(true);
  if (!fields.boolean("parallel_tool_calls").value_or(true)) call->max_calls = 1;

  ChatRequest request = read_chat_request(root);
  if (!request.add_generation_prompt) {
    throw bad_request("add_generation_prompt: wanted true, found false: there would be nothing to answer",
                      "add_generation_prompt");
  }
  std::vector<std::string> other;
  std::vector<std::string_view> carried_out(std::begin(kSamplingFields), std::end(kSamplingFields));
  carried_out.insert(carried_out.end(), std::begin(kCarriedOut), std::end(kCarriedOut));
  note_other_fields(root, carried_out, "this server", other);
  for (const std::string& note : other) log::info("request: {}", note);
  call->prompt = rendered(request, service);
  call->notes = call->prompt.notes;
  call->notes.insert(call->notes.end(), other.begin(), other.end());
  call->rules = rules_of(request, fields, service.model(), call->notes);
  return call;
}

std::vector<std::shared_ptr<Turn>> make_turns(const Service& service, const ChatCall& call) {
  std::vector<std::shared_ptr<Turn>> turns;
  for (int64_t i = 0; i < call.generation.choices; ++i) {
    turns.push_back(std::make_shared<Turn>(service.model(), call.prompt, call.turn_options(i)));
  }
  return turns;
}

void start_turns(Run& run, const ChatCall& call, const std::vector<std::shared_ptr<Turn>>& turns) {
  std::vector<Run::Choice> choices;
  for (const std::shared_ptr<Turn>& turn : turns) choices.push_back({turn->request(call.prompt.ids), turn});
  run.start(std::move(choices));
}

}  // namespace weft::api
