// What the measurements of models share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "engine/executor_loader.h"

namespace weft::bench {

// Pseudo-random ids, the same in every run.
class RandomIds {
 public:
  explicit RandomIds(int64_t vocab) : vocab_(static_cast<uint64_t>(vocab)) {}
  std::vector<int32_t> next(int64_t count);

 private:
  uint64_t vocab_;
  uint64_t state_ = 1;
};

// One step of a sequence that ends in a greedy draw.
void step(Executor& executor, SequenceId sequence, std::vector<int32_t> ids);

// Reads the pages of a small model's weights: enough random rows to name every expert.
void warm_up(Executor& executor, RandomIds& ids, int64_t chunk);

[[nodiscard]] Json facts_of(const LoadedExecutor& loaded, int64_t tokens);

}  // namespace weft::bench
