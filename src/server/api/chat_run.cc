#include "server/api/chat_run.h"

#include <algorithm>
#include <utility>

#include "engine/answer_json.h"
#include "server/api/event_stream.h"
#include "server/api/logprobs.h"

namespace weft::api {
namespace {

constexpr std::string_view kRoleDelta = R"({"role":"assistant","content":""})";

std::string text_delta(std::string_view field, std::string_view text) {
  std::string made = "{\"";
  made += field;
  made += "\":";
  append_json_string(made, text);
  return made + "}";
}

std::string call_delta(const ChatEvent& event) {
  std::string made = fmt::format(R"({{"tool_calls":[{{"index":{},)", event.call_index);
  if (event.kind == ChatEvent::Kind::call_start) {
    made += R"("id":)";
    append_json_string(made, event.call_id);
    made += R"(,"type":"function","function":{"name":)";
    append_json_string(made, event.text);
    made += R"(,"arguments":""}}]})";
  } else {
    made += R"("function":{"arguments":)";
    append_json_string(made, event.text);
    made += "}}]}";
  }
  return made;
}

// The prompt counts once, however many choices there are.
Json usage_of(const std::vector<TurnResult>& results) {
  Json usage = usage_json(results.front());
  int64_t generated = 0;
  int64_t reasoning = 0;
  for (const TurnResult& result : results) {
    generated += result.statistics.generated_tokens;
    reasoning += result.counters.reasoning_tokens;
  }
  usage["completion_tokens"] = generated;
  usage["total_tokens"] = results.front().statistics.prompt_tokens + generated;
  usage["completion_tokens_details"]["reasoning_tokens"] = reasoning;
  return usage;
}

}  // namespace

ChatRun::ChatRun(const Service& service, std::shared_ptr<http::Exchange> exchange, std::shared_ptr<const ChatCall> call)
    : Run(service, std::move(exchange)),
      call_(std::move(call)),
      turns_(make_turns(service, *call_)),
      id_(random_id("chatcmpl-")),
      created_(unix_time()),
      logprobs_(turns_.size()),
      results_(turns_.size()) {
  head_ = R"(data: {"id":)";
  append_json_string(head_, id_);
  head_ += fmt::format(R"(,"object":"chat.completion.chunk","created":{},"model":)", created_);
  append_json_string(head_, call_->generation.model);
  head_ += R"(,"system_fingerprint":)";
  append_json_string(head_, service.system_fingerprint());
  head_ += R"(,"choices":[)";
}

void ChatRun::start() { start_turns(*this, *call_, turns_); }

void ChatRun::write_chunk(int64_t choice, std::string_view delta, std::string_view logprobs, std::string_view finish,
                          std::string_view more, std::string_view beside) {
  exchange().write(fmt::format(R"({}{{"index":{},"delta":{},"logprobs":{},"finish_reason":{}{}}}]{}}})"
                               "\n\n",
                               head_, choice, delta, logprobs, finish, more, beside));
}

void ChatRun::began() {
  if (!call_->generation.stream) return;
  streaming_ = true;
  start_events(exchange(), call_->notes);
  for (int64_t i = 0; i < static_cast<int64_t>(turns_.size()); ++i) write_chunk(i, kRoleDelta, "null", "null");
}

void ChatRun::moved(int64_t choice) {
  if (call_->generation.stream) write_events(choice);
}

void ChatRun::write_events(int64_t choice) {
  const auto i = static_cast<size_t>(choice);
  const std::vector<ChatEvent> events = turns_[i]->take_events();
  for (TokenLogprob& token : turns_[i]->take_logprobs()) logprobs_[i].push_back(std::move(token));
  for (const ChatEvent& event : events) {
    switch (event.kind) {
      case ChatEvent::Kind::reasoning:
        if (call_->include_reasoning) write_chunk(choice, text_delta("reasoning_content", event.text), "null", "null");
        break;
      case ChatEvent::Kind::content: {
        std::string logprobs = "null";
        if (call_->logprobs) {
          logprobs = json_text(chat_logprobs_json(service().model().format().tokenizer(), logprobs_[i]));
          logprobs_[i].clear();
        }
        write_chunk(choice, text_delta("content", event.text), logprobs, "null");
        break;
      }
      case ChatEvent::Kind::call_start:
      case ChatEvent::Kind::call_arguments: write_chunk(choice, call_delta(event), "null", "null"); break;
      case ChatEvent::Kind::call_end:
      case ChatEvent::Kind::finish: break;  // see ended()
    }
  }
}

void ChatRun::ended(int64_t choice, const RequestReport& report) {
  static_cast<void>(report);
  const auto i = static_cast<size_t>(choice);
  for (TokenLogprob& token : turns_[i]->take_logprobs()) logprobs_[i].push_back(std::move(token));
  results_[i] = turns_[i]->result();
  results_[i].notes = call_->notes;
  service().metrics().count_recoveries(results_[i].counters);
  ++ended_;
  if (call_->generation.stream) write_finish(choice);
}

void ChatRun::write_finish(int64_t choice) {
  const auto i = static_cast<size_t>(choice);
  const TurnResult& result = results_[i];
  const std::string logprobs = call_->logprobs && !logprobs_[i].empty()
                                   ? json_text(chat_logprobs_json(service().model().format().tokenizer(), logprobs_[i]))
                                   : "null";
  std::string more;
  if (result.stop_string) {
    more = R"(,"stop_reason":)";
    append_json_string(more, *result.stop_string);
  } else if (result.stop_id) {
    more = fmt::format(R"(,"stop_reason":{})", *result.stop_id);
  }
  // The last chunk has what is Weft's own (R21).
  const bool last = ended_ == choices() && !call_->generation.include_usage;
  const std::string facts =
      last ? fmt::format(R"(,"weft":{})", json_text(answer_facts(service().model(), results_.front()))) : "";
  write_chunk(choice, "{}", logprobs, fmt::format("\"{}\"", to_string(result.answer.finish_reason)), more, facts);
}

void ChatRun::completed() {
  const Model& model = service().model();
  if (call_->generation.stream) {
    if (call_->generation.include_usage) {
      exchange().write(fmt::format("{}],\"usage\":{},\"weft\":{}}}\n\n", head_, json_text(usage_of(results_)),
                                   json_text(answer_facts(model, results_.front()))));
    }
    return finish_events(exchange());
  }
  Json body;
  body["id"] = id_;
  body["object"] = "chat.completion";
  body["created"] = created_;
  body["model"] = call_->generation.model;
  body["system_fingerprint"] = service().system_fingerprint();
  body["choices"] = Json::array();
  for (size_t i = 0; i < results_.size(); ++i) {
    const TurnResult& result = results_[i];
    Json choice;
    choice["index"] = i;
    choice["message"] = message_json(result.answer, result.thinking);
    if (!call_->include_reasoning) choice["message"].erase("reasoning_content");
    choice["logprobs"] = call_->logprobs ? chat_logprobs_json(model.format().tokenizer(), logprobs_[i]) : Json(nullptr);
    choice["finish_reason"] = to_string(result.answer.finish_reason);
    if (result.stop_string) choice["stop_reason"] = *result.stop_string;
    if (result.stop_id) choice["stop_reason"] = *result.stop_id;
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = usage_of(results_);
  body["weft"] = answer_facts(model, results_.front());
  http::Response response = json_response(body);
  add_warnings(response, call_->notes);
  exchange().respond(std::move(response));
}

void ChatRun::failed(const ApiError& error) {
  if (!streaming_) return exchange().respond(error_response(error));
  fail_events(exchange(), error);
}

}  // namespace weft::api
