// What all endpoints share: a model with its engine, and how it is offered.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_thread.h"
#include "engine/model.h"
#include "server/api/api_error.h"
#include "server/metrics.h"
#include "text/json_value.h"

namespace weft::api {

struct ServiceOptions {
  std::vector<std::string> names;             // under which the model is asked for, at least one; "default" always works
  std::string build;                          // version and commit
  SamplingChoice defaults;                    // where the request says nothing; before those of the model
  std::optional<int64_t> default_max_tokens;  // of a request that says nothing; absent: what the context leaves
  int64_t most_choices = 16;                  // of `n`
  bool raw_prompts = false;                   // text prompts of /v1/completions may spell control tokens
};

class Service {
 public:
  // Model, engine and metrics outlive it.
  Service(const Model& model, EngineThread& engine, ServerMetrics& metrics, ServiceOptions options);

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] EngineThread& engine() const { return engine_; }
  [[nodiscard]] ServerMetrics& metrics() const { return metrics_; }
  [[nodiscard]] const ServiceOptions& options() const { return options_; }
  [[nodiscard]] const std::string& system_fingerprint() const { return fingerprint_; }  // of build and model
  [[nodiscard]] int64_t created() const { return created_; }                            // Unix time of the start
  // Most tokens of prompt and answer.
  [[nodiscard]] int64_t context() const { return engine_.context_limit(); }

  // The name under which a request asks for the model. Throws 404 for an unknown one, 400 for none.
  [[nodiscard]] std::string asked_model(const JsonValue& root) const;
  [[nodiscard]] bool serves(std::string_view name) const;
  // Most tokens of a prompt: one of an answer has room behind them.
  [[nodiscard]] int64_t most_prompt() const { return context() - 1; }
  // Throws 400 (context_length_exceeded) for a longer prompt, which stands in the field `param`. `at_least`: it may have more
  // tokens.
  void check_length(int64_t tokens, std::string_view param, bool at_least = false) const;

  // No new requests any more; those under way go on.
  void drain() { draining_ = true; }
  // Throws 503 while draining.
  void check_open() const;

 private:
  const Model& model_;
  EngineThread& engine_;
  ServerMetrics& metrics_;
  ServiceOptions options_;
  std::string fingerprint_;
  int64_t created_;
  std::atomic<bool> draining_ = false;
};

// `prefix` and 24 random characters of [A-Za-z0-9].
[[nodiscard]] std::string random_id(std::string_view prefix);
[[nodiscard]] int64_t unix_time();

}  // namespace weft::api
