#include "server/status.h"

#include <utility>

#include "base/guard.h"
#include "engine/process_memory.h"
#include "server/api/api_error.h"

namespace weft {
namespace {

constexpr double kStagesSeconds = 2.0;  // between two questions to the stages
constexpr double kRateSeconds = 2.0;    // least span of a rate

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

StatusReport::StatusReport(const Model& model, EngineThread& engine, const ServerMetrics& metrics, StatusOptions options)
    : model_(model), engine_(engine), metrics_(metrics), options_(std::move(options)) {}

LoadFigures StatusReport::load() const {
  const EngineThread::Figures figures = engine_.figures();
  return {figures.running, figures.queued, figures.state_share, options_.connections ? options_.connections() : 0};
}

// Tokens a second between two marks that are two to four seconds old.
double StatusReport::rate() const {
  const std::lock_guard lock(mutex_);
  const Mark now{Clock::now(), metrics_.generated_so_far()};
  if (!older_) older_ = Mark{began_, 0};
  if (!newer_) newer_ = older_;
  if (seconds_between(newer_->at, now.at) >= kRateSeconds) {
    older_ = newer_;
    newer_ = now;
  }
  const double span = seconds_between(older_->at, now.at);
  return span > 0.0 ? static_cast<double>(now.tokens - older_->tokens) / span : 0.0;
}

Json StatusReport::stages() const {
  if (!options_.stages) {
    Json made = Json::array();
    for (const LayerRange& stage : model_.stages())
      made.push_back({{"layers", fmt::format("{}-{}", stage.begin, stage.end.value - 1)}, {"state", "in this process"}});
    return made;
  }
  // One asks, which can take long where a stage does not answer. The threads that serve requests are few: the others take what
  // is known.
  const std::unique_lock asking(asking_, std::try_to_lock);
  const auto known = [&] {
    const std::lock_guard lock(mutex_);
    return stages_;
  };
  if (!asking || (asked_ && seconds_between(*asked_, Clock::now()) < kStagesSeconds)) return known();
  Json found = known();
  const std::optional<Failure> failure = guard([&] { found = options_.stages(); });
  if (failure) {
    // The last that is known of each, and that it is not of now.
    for (Json& stage : found) stage["state"] = "does not answer";
  }
  asked_ = Clock::now();
  const std::lock_guard lock(mutex_);
  stages_ = found;
  return found;
}

Json StatusReport::json() const {
  const std::optional<Failure> trouble = engine_.trouble();
  const EngineThread::Figures figures = engine_.figures();
  const double tokens = rate();
  const auto token_bytes = static_cast<double>(model_.executor().bytes_per_token().value);
  Json made;
  made["state"] = trouble ? "failing" : "ok";
  made["reason"] = trouble ? Json(api::error_of(*trouble).message) : Json(nullptr);
  made["model"] = options_.name;
  made["build"] = options_.build;
  made["profile"] = to_string(model_.profile());
  made["context"] = engine_.context_limit();
  made["uptime_seconds"] = seconds_between(began_, Clock::now());
  made["requests"] = {{"running", figures.running}, {"waiting", figures.queued}};
  made["tokens_per_second"] = tokens;
  made["limit"] = {{"bytes_per_token", token_bytes}};
  if (options_.bandwidth && token_bytes > 0.0) {
    made["limit"]["bytes_per_second"] = *options_.bandwidth;
    made["limit"]["tokens_per_second"] = *options_.bandwidth / token_bytes;
    made["limit"]["share"] = tokens * token_bytes / *options_.bandwidth;
  }
  made["memory"] = {
      {"peak_bytes", peak_memory().value}, {"weight_bytes", model_.weight_bytes().value}, {"state_share", figures.state_share}};
  made["stages"] = stages();
  return made;
}

}  // namespace weft
