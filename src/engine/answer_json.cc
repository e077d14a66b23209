#include "engine/answer_json.h"

#include <string>

#include "base/plural.h"
#include "engine/process_memory.h"
#include "text/json_value.h"

namespace weft {
namespace {

constexpr double kGiga = 1e9;

std::string_view end_name(const TurnResult& result) {
  if (result.end == RequestEnd::timeout) return "time limit";
  return result.end == RequestEnd::cancelled ? "interrupted" : to_string(result.answer.finish_reason);
}

// The shortest decimal that gives the same float: 0.8, not 0.800000011920929.
double shown(float value) { return std::stod(fmt::format("{}", value)); }

// Rates are 0 when unknown.
Json known(double rate) { return rate > 0.0 ? Json(rate) : Json(nullptr); }

std::string rate_text(double rate, int digits, std::string_view unit) {
  return rate > 0.0 ? fmt::format(", {:.{}f} {}", rate, digits, unit) : "";
}

double bytes_rate(const Model& model, const TurnResult& result) {
  return static_cast<double>(model.executor().bytes_per_token().value) * result.statistics.generate_rate();
}

}  // namespace

Json message_json(const ChatAnswer& answer, bool thinking) {
  Json message;
  message["role"] = "assistant";
  message["content"] = answer.content.empty() && !answer.tool_calls.empty() ? Json(nullptr) : Json(answer.content);
  if (thinking || !answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  for (const ToolCall& call : answer.tool_calls) {
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

Json usage_json(const TurnResult& result) {
  const RequestReport& statistics = result.statistics;
  return {{"prompt_tokens", statistics.prompt_tokens},
          {"completion_tokens", statistics.generated_tokens},
          {"total_tokens", statistics.prompt_tokens + statistics.generated_tokens},
          {"prompt_tokens_details", {{"cached_tokens", statistics.reused_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.counters.reasoning_tokens}}}};
}

std::string tool_call_line(const ToolCall& call) {
  std::string line = R"({"name": )";
  append_json_string(line, call.name);
  line += R"(, "arguments": )";
  const std::optional<JsonValue> arguments = try_parse_json_value(call.arguments, {.duplicate_keys = true});
  if (arguments) {
    line += write_json(*arguments, {.spaced = true});
  } else {
    append_json_string(line, call.arguments);
  }
  return line + "}";
}

Json answer_facts(const Model& model, const TurnResult& result) {
  const ops::SamplingParams& sampling = result.sampling;
  Json weft;
  weft["interrupted"] = result.end == RequestEnd::cancelled;
  weft["timed_out"] = result.end == RequestEnd::timeout;
  weft["profile"] = to_string(model.profile());
  weft["threads"] = model.threads() > 0 ? Json(model.threads()) : Json(nullptr);  // stages elsewhere have their own
  for (const LayerRange& stage : model.stages()) {
    weft["stages"].push_back(fmt::format("{}-{}", stage.begin, stage.end.value - 1));
  }
  weft["sampling"] = {{"temperature", shown(sampling.temperature)},
                      {"top_p", shown(sampling.top_p)},
                      {"top_k", sampling.top_k},
                      {"min_p", shown(sampling.min_p)},
                      {"repetition_penalty", shown(sampling.repetition_penalty)},
                      {"frequency_penalty", shown(sampling.frequency_penalty)},
                      {"presence_penalty", shown(sampling.presence_penalty)},
                      {"seed", sampling.seed}};
  weft["tokens_reused"] = result.statistics.reused_tokens;
  weft["tokens_reused_from"] = to_string(result.statistics.reused_from);
  weft["tokens_computed"] = result.statistics.computed_tokens;
  weft["tokens_recomputed"] = result.statistics.recomputed_tokens;
  weft["held_tail_dropped_bytes"] = result.counters.dropped_tail_bytes;
  weft["stray_markers"] = result.counters.stray_markers;
  weft["recovered_answers"] = result.counters.recoveries;
  weft["abandoned_calls"] = result.counters.abandoned_calls;
  weft["discarded_calls"] = result.counters.discarded_calls;
  weft["prompt_tokens_per_second"] = known(result.statistics.prompt_rate());
  weft["generated_tokens_per_second"] = known(result.statistics.generate_rate());
  weft["bytes_per_token"] = model.executor().bytes_per_token().value;
  weft["gigabytes_per_second"] = known(bytes_rate(model, result) / kGiga);
  weft["weight_bytes"] = model.weight_bytes().value;
  weft["notes"] = result.notes;
  for (const std::string& note : model.notes()) weft["notes"].push_back(note);
  return weft;
}

Json result_json(const Model& model, const TurnResult& result) {
  Json made = message_json(result.answer, result.thinking);
  made.erase("role");
  made["finish_reason"] = result.end == RequestEnd::cancelled ? Json(nullptr) : Json(to_string(result.answer.finish_reason));
  made["usage"] = usage_json(result);
  made["weft"] = answer_facts(model, result);
  made["weft"]["memory"] = memory_json(model.executor().memory());
  return made;
}

void add_place(Json& error, const StagePlace& place) {
  error["stage"] = place.stage;
  error["node"] = place.node;
  error["step"] = place.step ? Json(*place.step) : Json(nullptr);
}

Json failure_json(const Failure& failure, const ChatAnswer& so_far) {
  Json made = message_json(so_far, true);
  made["finish_reason"] = nullptr;
  Json& error = made["error"];
  error = {{"kind", to_string(failure.kind)}, {"message", failure.message}};
  if (failure.stage) add_place(error, *failure.stage);
  return made;
}

std::string summary_line(const Model& model, const TurnResult& result) {
  const RequestReport& statistics = result.statistics;
  const int64_t read = statistics.reused_tokens + statistics.computed_tokens;
  const std::string cut = read < statistics.prompt_tokens ? fmt::format("{} of ", read) : "";
  const std::string reused =
      statistics.reused_tokens > 0 ? fmt::format(" ({} kept from before)", statistics.reused_tokens) : "";
  std::string gpu = gpu_memory_text(model.executor().memory());
  if (!gpu.empty()) gpu += "; ";
  return fmt::format("{}: prompt {}{}{}{}; generated {}{}; {} per token{}; peak memory {}; {}profile {}", end_name(result), cut,
                     counted(statistics.prompt_tokens, "token"), reused, rate_text(statistics.prompt_rate(), 1, "tokens/s"),
                     counted(statistics.generated_tokens, "token"), rate_text(statistics.generate_rate(), 1, "tokens/s"),
                     human_bytes(model.executor().bytes_per_token().value),
                     rate_text(bytes_rate(model, result) / kGiga, 2, "GB/s"), human_bytes(peak_memory().value), gpu,
                     to_string(model.profile()));
}

}  // namespace weft
