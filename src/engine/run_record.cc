#include "engine/run_record.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <set>

#include "base/plural.h"
#include "base/system_memory.h"
#include "base/text_table.h"
#include "engine/answer_json.h"
#include "engine/bench/record.h"
#include "engine/process_memory.h"

namespace weft {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string name_of(const std::filesystem::path& dir) {
  const std::filesystem::path normal = (dir / "").lexically_normal().parent_path();
  return normal.filename().string();
}

// The host of an address; all that stand for this host are one.
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  const bool here = address.starts_with("unix:") || host == "localhost" || host == "[::1]" || host.starts_with("127.");
  return here ? "" : host;
}

double first_token_seconds(const TurnResult& result) {
  return result.statistics.queue_seconds + result.statistics.prompt_seconds;
}

double bubble_share(const Json& stage, double seconds) {
  return seconds > 0.0 ? std::clamp(1.0 - stage.at("seconds").at("compute").get<double>() / seconds, 0.0, 1.0) : 0.0;
}

Json topology_json(const RunFacts& facts) {
  Json made = {{"kind", facts.topology}};
  if (facts.stages.empty()) return made;
  std::set<std::string> hosts;
  made["hosts_of_stages"] = 0;
  made["nodes"] = Json::array();
  for (const Json& stage : facts.stages) {
    const auto address = stage.at("address").get<std::string>();
    hosts.insert(host_of(address));
    // A socket's path names a folder of this run alone.
    made["nodes"].push_back({{"stage", stage.at("stage")},
                             {"node", stage.at("node")},
                             {"address", address.starts_with("unix:") ? "Unix socket" : address},
                             {"device", stage.at("device")}});
  }
  made["hosts_of_stages"] = hosts.size();
  return made;
}

Json stage_json(const Json& report, double seconds) {
  return {{"stage", report.at("stage")},           {"node", report.at("node")},
          {"layers", report.at("layers")},         {"weight_bytes", report.at("weight_bytes")},
          {"planned", report.at("planned")},       {"measured", report.at("memory")},
          {"steps", report.at("steps")},           {"seconds", report.at("seconds")},
          {"idle_share", report.at("idle_share")}, {"bubble_share", bubble_share(report, seconds)},
          {"bytes_sent", report.at("bytes_sent")}, {"bytes_received", report.at("bytes_received")},
          {"bytes_read", report.at("bytes_read")}, {"shards", report.at("shards")}};
}

}  // namespace

Json run_record(const Model& model, const TurnResult& result, const RunFacts& facts) {
  const Json answer = result_json(model, result);
  Executor& executor = model.executor();
  Json made = {{"record", "generate"},
               {"date", utc_now()},
               {"commit", facts.commit},
               {"command", facts.command},
               {"machine", bench::machine_json()},
               {"model",
                {{"name", name_of(facts.model_dir)},
                 {"fingerprint", executor.fingerprint()},
                 {"layers", executor.layer_count()},
                 {"weight_bytes", model.weight_bytes().value},
                 {"bytes_per_token", executor.bytes_per_token().value},
                 {"profile", std::string(to_string(model.profile()))}}},
               {"prompt", facts.prompt},
               {"output", answer.at("content")}};
  if (answer.contains("reasoning_content")) made["reasoning"] = answer.at("reasoning_content");
  if (answer.contains("tool_calls")) made["tool_calls"] = answer.at("tool_calls");
  made["finish_reason"] = answer.at("finish_reason");
  made["usage"] = answer.at("usage");
  made["sampling"] = answer.at("weft").at("sampling");
  made["topology"] = topology_json(facts);
  made["split"] = answer.at("weft").at("stages");
  made["stages"] = Json::array();
  for (const Json& stage : facts.stages) made["stages"].push_back(stage_json(stage, facts.seconds));
  if (!facts.stages_missing.empty()) made["stages_missing"] = facts.stages_missing;
  const ProcessMemory process = process_memory();
  made["process"] = {{"resident_bytes", process.resident}, {"peak_bytes", process.peak}};
  if (facts.stages.empty()) made["process"]["memory"] = answer.at("weft").at("memory");
  made["seconds"] = {{"answer", facts.seconds},
                     {"first_token", first_token_seconds(result)},
                     {"prompt", result.statistics.prompt_seconds},
                     {"generate", result.statistics.generate_seconds}};
  made["tokens_per_second"] = {{"prompt", answer.at("weft").at("prompt_tokens_per_second")},
                               {"generate", answer.at("weft").at("generated_tokens_per_second")}};
  return made;
}

std::string run_table(const Model& model, const TurnResult& result, const RunFacts& facts) {
  const RequestReport& statistics = result.statistics;
  std::string text = fmt::format(
      "prompt: {}, {:.1f} tokens/s; generated: {}, {:.1f} tokens/s; first token after {:.3f} s; answer in {:.3f} s\n",
      counted(statistics.prompt_tokens, "token"), statistics.prompt_rate(), counted(statistics.generated_tokens, "token"),
      statistics.generate_rate(), first_token_seconds(result), facts.seconds);
  if (!facts.stages_missing.empty()) return text + fmt::format("stages: not known: {}\n", facts.stages_missing);
  if (facts.stages.empty()) {
    const MemoryUse use = model.executor().memory();
    return text + fmt::format("stages in this process: {}; weights {}, states {}, workspace {}, peak {}\n",
                              std::ssize(model.stages()), human_bytes((use.trunk + use.experts).value),
                              human_bytes(use.state.value), human_bytes(use.workspace.value), human_bytes(peak_memory().value));
  }
  std::vector<std::vector<std::string>> rows;
  for (const Json& stage : facts.stages) {
    const Json& memory = stage.at("memory");
    const Json& seconds = stage.at("seconds");
    const auto bytes = [](const Json& value) { return human_bytes(value.get<int64_t>()); };
    const auto time = [](const Json& value) { return fmt::format("{:.3f}", value.get<double>()); };
    rows.push_back({fmt::format("{}", stage.at("stage").get<int64_t>()), stage.at("node").get<std::string>(),
                    stage.at("layers").get<std::string>(),
                    human_bytes(memory.at("trunk_bytes").get<int64_t>() + memory.at("expert_bytes").get<int64_t>()),
                    bytes(memory.at("state_bytes")), bytes(memory.at("resident_bytes")), bytes(memory.at("peak_bytes")),
                    time(seconds.at("compute")), time(seconds.at("wait")), time(seconds.at("send")),
                    bytes(stage.at("bytes_sent")), fmt::format("{:.0f} %", 100.0 * bubble_share(stage, facts.seconds))});
  }
  return text + text_table({{"stage", true},
                            {"node"},
                            {"layers"},
                            {"weights", true},
                            {"states", true},
                            {"resident", true},
                            {"peak", true},
                            {"compute s", true},
                            {"wait s", true},
                            {"send s", true},
                            {"sent", true},
                            {"bubble", true}},
                           rows);
}

}  // namespace weft
