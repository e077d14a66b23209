#include "server/api/responses_run.h"

#include <utility>

#include "engine/answer_json.h"
#include "server/api/event_stream.h"
#include "server/api/logprobs.h"

namespace weft::api {
namespace {

// What the API calls it.
std::string_view code_of(const ApiError& error) {
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status < 500 ? "invalid_prompt" : "server_error";
}

Json usage_of(const TurnResult& result) {
  const RequestReport& statistics = result.statistics;
  return {{"input_tokens", statistics.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", statistics.reused_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", statistics.generated_tokens},
          {"output_tokens_details", {{"reasoning_tokens", result.counters.reasoning_tokens}}},
          {"total_tokens", statistics.prompt_tokens + statistics.generated_tokens}};
}

}  // namespace

ResponsesRun::ResponsesRun(const Service& service, ResponsesStore& store, std::shared_ptr<http::Exchange> exchange,
                           std::shared_ptr<const ResponsesCall> call)
    : Run(service, std::move(exchange)),
      store_(store),
      call_(std::move(call)),
      turn_(make_turns(service, *call_->chat).front()),
      id_(random_id("resp_")),
      created_(unix_time()),
      output_(stream() ? ResponseOutput::Emit([this](std::string_view type, const Json& fields) { write(type, fields); })
                       : ResponseOutput::Emit()) {}

void ResponsesRun::start() { start_turns(*this, *call_->chat, {turn_}); }

void ResponsesRun::write(std::string_view type, const Json& fields) {
  Json event;
  event["type"] = type;
  event["sequence_number"] = events_++;
  event.update(fields);
  exchange().write(fmt::format("event: {}\ndata: {}\n\n", type, json_text(event)));
}

Json ResponsesRun::body(std::string_view status, const ApiError* error) const {
  Json made;
  made["id"] = id_;
  made["object"] = "response";
  made["created_at"] = created_;
  made["status"] = status;
  made["completed_at"] = status == "completed" ? Json(unix_time()) : Json(nullptr);
  made["error"] = nullptr;
  if (error != nullptr) {
    made["error"] = {{"code", code_of(*error)}, {"message", error->message}};
    add_stage(made["error"], *error);
  }
  made["incomplete_details"] = nullptr;
  if (status == "incomplete") made["incomplete_details"] = {{"reason", "max_output_tokens"}};
  made.update(call_->settings);
  made["output"] = output_.items();
  made["usage"] = result_ ? usage_of(*result_) : Json(nullptr);
  if (result_) made["weft"] = answer_facts(service().model(), *result_);
  return made;
}

void ResponsesRun::keep(const Json& body, bool running) {
  if (!call_->store) return;
  auto items = std::make_shared<ResponseItems>();
  items->input = call_->input;
  items->output = json_text(body["output"]);
  auto kept = std::make_shared<StoredResponse>();
  kept->id = id_;
  kept->body = json_text(body);
  kept->history = call_->history;
  kept->items = std::move(items);
  kept->running = running;
  if (running) kept->run = weak_from_this();
  if (running || !streaming_) {
    store_.add(std::move(kept));
  } else {
    store_.replace(std::move(kept));
  }
}

void ResponsesRun::began() {
  if (!stream()) return;
  const Json body = this->body("in_progress");
  keep(body, true);
  streaming_ = true;
  start_events(exchange(), call_->notes);
  write("response.created", {{"response", body}});
  write("response.in_progress", {{"response", body}});
}

void ResponsesRun::moved(int64_t choice) {
  static_cast<void>(choice);
  const std::vector<ChatEvent> events = turn_->take_events();
  const std::vector<TokenLogprob> tokens = turn_->take_logprobs();
  if (!tokens.empty()) output_.add_logprobs(chat_logprobs_json(service().model().format().tokenizer(), tokens)["content"]);
  for (const ChatEvent& event : events) {
    if (event.kind != ChatEvent::Kind::reasoning || call_->chat->include_reasoning) output_.add(event);
  }
}

void ResponsesRun::take_result() {
  result_ = turn_->result();
  result_->notes = call_->notes;
}

void ResponsesRun::ended(int64_t choice, const RequestReport& report) {
  static_cast<void>(choice);
  static_cast<void>(report);
  take_result();
  service().metrics().count_recoveries(result_->counters);
  output_.close(result_->answer.finish_reason == FinishReason::length ? "incomplete" : "completed");
}

void ResponsesRun::completed() {
  const bool cut = result_->answer.finish_reason == FinishReason::length;
  const Json body = this->body(cut ? "incomplete" : "completed");
  if (stream()) return finish(cut ? "response.incomplete" : "response.completed", body);
  keep(body, false);
  http::Response response = json_response(body);
  add_warnings(response, call_->notes);
  exchange().respond(std::move(response));
}

void ResponsesRun::finish(std::string_view event, const Json& body) {
  keep(body, false);
  write(event, {{"response", body}});
  exchange().finish();
}

void ResponsesRun::failed(const ApiError& error) {
  if (!streaming_) return exchange().respond(error_response(error));
  output_.close("incomplete");
  finish("response.failed", body("failed", &error));
}

// The API has no event of its own for this.
void ResponsesRun::cancelled() {
  moved(0);
  take_result();
  output_.close("incomplete");
  const Json body = this->body("cancelled");
  if (streaming_) return finish("response.incomplete", body);
  exchange().respond(json_response(body));
}

void ResponsesRun::left() {
  if (!streaming_) return;
  // A stream that is gone drops what is written.
  moved(0);
  static_cast<void>(guard([&] { take_result(); }));  // there is none of a request that failed
  output_.close("incomplete");
  keep(body("cancelled"), false);
}

}  // namespace weft::api
