// Sinks and runs for tests of the engine on token ids.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace weft::engine_test {

// Keeps what comes.
class Collector : public TokenSink {
 public:
  bool ready() override { return open; }
  void constrain(SampleRequest& draw, int64_t) override { draw.allowed = mask; }
  void on_prompt(int64_t done, int64_t) override { prompt_done = done; }
  bool on_token(const ops::Sampled& token) override {
    ids.push_back(token.id);
    logprobs.push_back(token.logprob);
    if (on_each) on_each(token.id);
    return token.id == stop_id;
  }
  void on_end(const RequestReport& ended) override { report = ended; }

  [[nodiscard]] bool over() const { return report.has_value(); }

  bool open = true;
  std::vector<uint32_t> mask;
  int32_t stop_id = -1;
  std::function<void(int32_t)> on_each;

  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  int64_t prompt_done = 0;
  std::optional<RequestReport> report;
};

inline GenerateRequest request_of(std::vector<int32_t> ids, int64_t max_tokens, float temperature = 0.0F, uint64_t seed = 0) {
  GenerateRequest made;
  made.ids = std::move(ids);
  made.max_tokens = max_tokens;
  made.sampling.temperature = temperature;
  made.sampling.seed = seed;
  return made;
}

inline std::vector<int32_t> random_ids(int64_t length, uint32_t seed, int32_t low = 0, int32_t high = 512) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761U + 1;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 1664525U + 1013904223U;
    ids.push_back(low + static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(high - low)));
  }
  return ids;
}

inline void run_until_idle(Engine& engine) {
  while (engine.step()) {
  }
}

inline std::shared_ptr<Collector> answer(Engine& engine, GenerateRequest request) {
  auto sink = std::make_shared<Collector>();
  static_cast<void>(engine.submit(std::move(request), sink));
  run_until_idle(engine);
  return sink;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace weft::engine_test
