#include "server/api/completion_run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "server/api/event_stream.h"
#include "server/api/logprobs.h"
#include "server/api/request_fields.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

constexpr int64_t kMostLogprobs = 5;
constexpr size_t kMostPrompts = 128;

std::vector<TokenId> read_ids(const JsonValue& list, const Service& service) {
  const int64_t vocab = service.model().format().tokenizer().vocab_size();
  std::vector<TokenId> ids;
  for (const JsonValue& item : list.items) {
    const std::optional<int64_t> id = whole_number_of(item, 0, vocab - 1);
    if (!id)
      throw bad_request(fmt::format("prompt: wanted token ids from 0 to {}, found {}", vocab - 1, shown(&item)), "prompt");
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

std::vector<std::vector<TokenId>> read_prompts(const RequestFields& fields, const Service& service) {
  const JsonValue* value = fields.get("prompt");
  const auto encode = [&](const std::string& text) {
    LimitedIds encoded =
        service.model().format().tokenizer().encode_limited(text, service.options().raw_prompts, service.most_prompt());
    service.check_length(encoded.count, "prompt", encoded.cut);
    return std::move(encoded.ids);
  };
  std::vector<std::vector<TokenId>> prompts;
  if (value != nullptr && value->is(Kind::string)) {
    prompts.push_back(encode(value->text));
  } else if (value != nullptr && value->is(Kind::array) && !value->items.empty()) {
    if (value->items.front().is(Kind::number)) {
      prompts.push_back(read_ids(*value, service));
    } else {
      for (const JsonValue& item : value->items) {
        if (item.is(Kind::string)) {
          prompts.push_back(encode(item.text));
        } else if (item.is(Kind::array)) {
          prompts.push_back(read_ids(item, service));
        } else {
          fields.refuse("prompt", "strings, or arrays of token ids", &item);
        }
        if (prompts.size() > kMostPrompts)
          throw bad_request(fmt::format("prompt: wanted at most {} prompts, found more", kMostPrompts), "prompt");
      }
    }
  } else {
    fields.refuse("prompt", "a string, an array of strings, of token ids, or of arrays of token ids", value);
  }
  for (const std::vector<TokenId>& prompt : prompts) {
    if (prompt.empty()) throw bad_request("prompt: wanted at least one token, found none", "prompt");
    service.check_length(static_cast<int64_t>(prompt.size()), "prompt");
  }
  return prompts;
}

std::string finish_of(RequestEnd end) { return end == RequestEnd::stop ? "stop" : "length"; }

}  // namespace

std::shared_ptr<const CompletionCall> read_completion_call(const JsonValue& root, const Service& service) {
  const RequestFields fields(root);
  auto call = std::make_shared<CompletionCall>();
  call->generation = read_generation(root, service);
  const JsonValue* suffix = fields.get("suffix");
  if (suffix != nullptr && !(suffix->is(Kind::string) && suffix->text.empty()))
    throw bad_request("suffix: is not supported", "suffix", "unsupported_value");
  const std::optional<int64_t> best_of = fields.integer("best_of", 1, INT64_MAX);
  if (best_of && *best_of > 1) throw bad_request("best_of: wanted 1, found more", "best_of", "unsupported_value");
  call->echo = fields.boolean("echo").value_or(false);
  call->logprobs = fields.integer("logprobs", 0, kMostLogprobs);
  call->control_text = !fields.boolean("skip_special_tokens").value_or(true);
  call->prompts = read_prompts(fields, service);
  if (static_cast<int64_t>(call->prompts.size()) * call->generation.choices > static_cast<int64_t>(kMostPrompts))
    throw bad_request(fmt::format("n: wanted at most {} choices over all prompts, found more", kMostPrompts), "n");
  return call;
}

TextTurnOptions CompletionCall::turn_options(int64_t choice) const {
  TextTurnOptions options;
  options.sampling = generation.sampling_of(choice % generation.choices);
  options.max_tokens = generation.max_tokens;
  options.bias = generation.bias;
  options.stop = generation.stop;
  options.end = generation.end;
  options.control = control_text ? ControlText::all : ControlText::none;
  options.top_logprobs = logprobs;
  options.prompt_logprobs = echo && logprobs.has_value();
  return options;
}

CompletionRun::CompletionRun(const Service& service, std::shared_ptr<http::Exchange> exchange,
                             std::shared_ptr<const CompletionCall> call)
    : Run(service, std::move(exchange)), call_(std::move(call)), id_(random_id("cmpl-")), created_(unix_time()) {
  const auto count = static_cast<int64_t>(call_->prompts.size()) * call_->generation.choices;
  for (int64_t i = 0; i < count; ++i) {
    State& state = states_.emplace_back();
    state.turn = std::make_shared<TextTurn>(service.model(), call_->turn_options(i));
  }
}

void CompletionRun::start() {
  std::vector<Choice> choices;
  const Tokenizer& tokenizer = service().model().format().tokenizer();
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::vector<TokenId>& prompt = call_->prompts[i / static_cast<size_t>(call_->generation.choices)];
    if (call_->echo) states_[i].text = tokenizer.decode(prompt, call_->control_text ? ControlText::all : ControlText::none);
    choices.push_back({states_[i].turn->request(prompt), states_[i].turn});
  }
  Run::start(std::move(choices));
}

Json CompletionRun::body(std::vector<Json> choices) const {
  Json made;
  made["id"] = id_;
  made["object"] = "text_completion";
  made["created"] = created_;
  made["model"] = call_->generation.model;
  made["system_fingerprint"] = service().system_fingerprint();
  made["choices"] = Json::array();
  for (Json& choice : choices) made["choices"].push_back(std::move(choice));
  return made;
}

void CompletionRun::write(const Json& chunk) { exchange().write(fmt::format("data: {}\n\n", json_text(chunk))); }

Json CompletionRun::logprobs_json(State& state) {
  if (!call_->logprobs) return nullptr;
  const Tokenizer& tokenizer = service().model().format().tokenizer();
  const ControlText control = call_->control_text ? ControlText::all : ControlText::none;
  Json tokens = Json::array();
  Json values = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TextToken& token : state.tokens) {
    tokens.push_back(token_text(tokenizer, token.id));
    values.push_back(token.logprob ? logprob_json(*token.logprob) : Json(nullptr));
    Json top = Json::object();
    for (const ops::Sampled& other : token.top) top[token_text(tokenizer, other.id)] = logprob_json(other.logprob);
    tops.push_back(token.logprob ? std::move(top) : Json(nullptr));
    offsets.push_back(state.offset);
    const TokenId id = token.id;
    // In characters: a byte that continues one counts with its first.
    state.offset += std::ranges::count_if(tokenizer.decode_bytes({&id, 1}, control),
                                          [](char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; });
  }
  state.tokens.clear();
  Json made;
  made["tokens"] = std::move(tokens);
  made["token_logprobs"] = std::move(values);
  made["top_logprobs"] = std::move(tops);
  made["text_offset"] = std::move(offsets);
  return made;
}

Json CompletionRun::choice_json(int64_t choice, std::string text, bool over) {
  State& state = states_[static_cast<size_t>(choice)];
  Json made;
  made["text"] = std::move(text);
  made["index"] = choice;
  made["logprobs"] = logprobs_json(state);
  made["finish_reason"] = over ? Json(state.finish) : Json(nullptr);
  if (over && state.turn->stop_string()) made["stop_reason"] = *state.turn->stop_string();
  if (over && state.turn->stop_id()) made["stop_reason"] = *state.turn->stop_id();
  return made;
}

Json CompletionRun::usage() const {
  int64_t prompt = 0;
  int64_t generated = 0;
  int64_t reused = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    const RequestReport& report = states_[i].turn->report();
    generated += report.generated_tokens;
    // A prompt counts once, however many choices it has.
    if (static_cast<int64_t>(i) % call_->generation.choices != 0) continue;
    prompt += report.prompt_tokens;
    reused += report.reused_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", reused}}}};
}

void CompletionRun::began() {
  if (!call_->generation.stream) return;
  streaming_ = true;
  start_events(exchange(), {});
  for (size_t i = 0; i < states_.size() && call_->echo && !call_->logprobs; ++i) {
    const auto choice = static_cast<int64_t>(i);
    write(body({choice_json(choice, std::exchange(states_[i].text, {}), false)}));
  }
}

void CompletionRun::moved(int64_t choice) {
  State& state = states_[static_cast<size_t>(choice)];
  std::string text = state.turn->take_text();
  for (TextToken& token : state.turn->take_tokens()) state.tokens.push_back(std::move(token));
  if (!call_->generation.stream) {
    state.text += text;
    return;
  }
  if (text.empty()) return;
  // With log probabilities the echo comes beside those of its tokens, which are known now.
  write(body({choice_json(choice, std::exchange(state.text, {}) + text, false)}));
}

void CompletionRun::ended(int64_t choice, const RequestReport& report) {
  State& state = states_[static_cast<size_t>(choice)];
  state.finish = finish_of(report.end);
  if (call_->generation.stream) write(body({choice_json(choice, std::exchange(state.text, {}), true)}));
}

void CompletionRun::completed() {
  if (call_->generation.stream) {
    if (call_->generation.include_usage) {
      Json last = body({});
      last["usage"] = usage();
      write(last);
    }
    return finish_events(exchange());
  }
  std::vector<Json> choices;
  for (size_t i = 0; i < states_.size(); ++i)
    choices.push_back(choice_json(static_cast<int64_t>(i), std::move(states_[i].text), true));
  Json whole = body(std::move(choices));
  whole["usage"] = usage();
  const RequestReport& report = states_.front().turn->report();
  whole["weft"] = {{"tokens_reused", report.reused_tokens},
                   {"tokens_reused_from", to_string(report.reused_from)},
                   {"tokens_computed", report.computed_tokens},
                   {"tokens_recomputed", report.recomputed_tokens}};
  exchange().respond(json_response(whole));
}

void CompletionRun::failed(const ApiError& error) {
  if (!streaming_) return exchange().respond(error_response(error));
  fail_events(exchange(), error);
}

}  // namespace weft::api
