// What a server does at the moment, for its page and for programs: GET /status.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/json.h"
#include "engine/engine_thread.h"
#include "engine/model.h"
#include "server/metrics.h"

namespace weft {

struct StatusOptions {
  std::string build;
  std::string name;                           // of the model
  std::function<Json()> stages;               // of stages outside of this process (RemoteExecutor::stage_report); may be empty
  std::optional<double> bandwidth;            // bytes a second that all stages together can read; absent: not measured
  std::function<int64_t()> connections = {};  // that are open; may be empty
};

class StatusReport {
 public:
  // Model, engine and metrics outlive it.
  StatusReport(const Model& model, EngineThread& engine, const ServerMetrics& metrics, StatusOptions options);

  // {"state": "ok" | "failing", "reason", "model", "build", "profile", "context", "uptime_seconds", "requests": {"running",
  // "waiting"}, "tokens_per_second" (over the last seconds), "limit": {"bytes_per_token", and where the
  // bandwidth was measured "bytes_per_second", "tokens_per_second", "share"}, "memory": {"peak_bytes", "weight_bytes",
  // "state_share"}, "stages": [...]}. What stages outside of this process say of themselves is asked for at most every two
  // seconds, by one caller at a time, who waits for them; the others get what is known. A stage that cannot say keeps what it
  // said last, with the state "does not answer".
  [[nodiscard]] Json json() const;
  [[nodiscard]] LoadFigures load() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double rate() const;
  [[nodiscard]] Json stages() const;

  const Model& model_;
  EngineThread& engine_;
  const ServerMetrics& metrics_;
  StatusOptions options_;
  Clock::time_point began_ = Clock::now();
  mutable std::mutex asking_;  // held by the one that asks the stages
  mutable std::mutex mutex_;
  mutable Json stages_ = Json::array();             // guarded by mutex_
  mutable std::optional<Clock::time_point> asked_;  // guarded by asking_: when the stages were
  struct Mark {
    Clock::time_point at;
    int64_t tokens = 0;
  };
  mutable std::optional<Mark> older_;  // guarded by mutex_: for the rate
  mutable std::optional<Mark> newer_;  // guarded by mutex_
};

}  // namespace weft
