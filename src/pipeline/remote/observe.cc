#include "pipeline/remote/observe.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/text_table.h"
#include "base/units.h"
#include "pipeline/remote/observer_link.h"
#include "pipeline/remote/remote_executor.h"
#include "tensor/built_with_cuda.h"

namespace weft {
namespace {

constexpr double kAnswerSeconds = 10.0;

Json ask_status(const ObserverOptions& options, const ClusterNode& node) {
  ObserverLink link(options, node);
  wire::Control question;
  question.set_status(true);
  const wire::Control answer = link.ask(question, kAnswerSeconds);
  if (!answer.has_status_reply()) fail(ErrorKind::bad_input, "status", "wanted a status, found another message");
  return status_json(answer.status_reply().SerializeAsString());
}

std::string bytes_cell(const Json& bytes) { return human_bytes(bytes.get<int64_t>()); }

std::string seconds_cell(const Json& seconds) { return fmt::format("{:.1f}", seconds.get<double>()); }

std::string count_cell(const Json& count) { return with_commas(count.get<int64_t>()); }

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::vector<std::string> row_of(const StageObservation& seen) {
  std::vector<std::string> row = {fmt::format("{}", seen.stage), seen.node, seen.address};
  if (seen.failure) {
    row.push_back(seen.failure->kind == ErrorKind::unreachable ? "unreachable" : std::string(to_string(seen.failure->kind)));
    row.resize(16, "-");
    row.push_back(seen.failure->message);
    return row;
  }
  const Json& status = seen.status;
  const Json& memory = status.at("memory");
  const Json& seconds = status.at("seconds");
  const bool connected = seconds.at("up").get<double>() > 0.0;
  row.push_back(status.at("state").get<std::string>());
  row.push_back(or_dash(status.at("layers").get<std::string>()));
  row.push_back(human_bytes(memory.at("trunk_bytes").get<int64_t>() + memory.at("expert_bytes").get<int64_t>()));
  row.push_back(bytes_cell(memory.at("state_bytes")));
  row.push_back(bytes_cell(memory.at("resident_bytes")));
  row.push_back(count_cell(status.at("sequences")));
  row.push_back(count_cell(status.at("steps")));
  row.push_back(seconds_cell(seconds.at("compute")));
  row.push_back(seconds_cell(seconds.at("wait")));
  row.push_back(seconds_cell(seconds.at("send")));
  row.push_back(connected ? fmt::format("{:.0f} %", 100.0 * status.at("idle_share").get<double>()) : "-");
  row.push_back(bytes_cell(status.at("bytes_sent")));
  row.push_back(count_cell(status.at("failures")));
  row.push_back(or_dash(status.at("last_failure").get<std::string>()));
  return row;
}

}  // namespace

std::vector<StageObservation> observe_stages(const ObserverOptions& options) {
  std::vector<StageObservation> seen(static_cast<size_t>(options.cluster.stages));
  {
    std::vector<std::jthread> threads;
    for (int64_t s = 0; s < options.cluster.stages; ++s) {
      const ClusterNode& node = options.cluster.stage(s);
      StageObservation& one = seen[static_cast<size_t>(s)];
      one.stage = s;
      one.node = node.id;
      one.address = node.address;
      threads.emplace_back([&options, &node, &one] { one.failure = guard([&] { one.status = ask_status(options, node); }); });
    }
  }
  return seen;
}

Json observations_json(const std::string& cluster, const std::vector<StageObservation>& observations) {
  Json made = {{"cluster", cluster}, {"stages", Json::array()}};
  for (const StageObservation& seen : observations) {
    Json one = {
        {"stage", seen.stage}, {"node", seen.node}, {"address", seen.address}, {"reachable", !seen.failure.has_value()}};
    if (seen.failure) {
      one["failure"] = {{"kind", std::string(to_string(seen.failure->kind))}, {"message", seen.failure->message}};
    } else {
      one.update(seen.status);
    }
    made["stages"].push_back(std::move(one));
  }
  return made;
}

std::string observations_text(const std::vector<StageObservation>& observations) {
  std::vector<std::vector<std::string>> rows;
  for (const StageObservation& seen : observations) rows.push_back(row_of(seen));
  return text_table({{"stage", true},
                     {"node"},
                     {"address"},
                     {"state"},
                     {"layers"},
                     {"weights", true},
                     {"states", true},
                     {"resident", true},
                     {"sequences", true},
                     {"steps", true},
                     {"compute s", true},
                     {"wait s", true},
                     {"send s", true},
                     {"idle", true},
                     {"sent", true},
                     {"failures", true},
                     {"last failure"}},
                    rows);
}

std::optional<ErrorKind> worst_kind(const std::vector<ErrorKind>& kinds) {
  for (const ErrorKind kind : {ErrorKind::security, ErrorKind::handshake}) {
    if (std::ranges::find(kinds, kind) != kinds.end()) return kind;
  }
  // What is no fault of a model or of the plan is one of reaching a stage.
  const auto of_model = [](ErrorKind kind) {
    return kind == ErrorKind::bad_checkpoint || kind == ErrorKind::unsupported || kind == ErrorKind::plan_impossible;
  };
  if (!std::ranges::all_of(kinds, of_model)) return ErrorKind::unreachable;
  for (const ErrorKind kind : {ErrorKind::bad_checkpoint, ErrorKind::unsupported, ErrorKind::plan_impossible}) {
    if (std::ranges::find(kinds, kind) != kinds.end()) return kind;
  }
  return std::nullopt;
}

std::string built_with() { return fmt::format("gRPC {}, {} CUDA", grpc_version(), built_with_cuda() ? "with" : "without"); }

}  // namespace weft
