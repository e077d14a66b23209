// The split of a row of layers into stages, apart from what the numbers mean.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/units.h"

namespace weft {

enum class SplitObjective : uint8_t {
  memory,   // the largest used/budget
  compute,  // the largest time
  latency,  // the sum of times and hops
};

struct SplitProblem {
  int64_t layers = 0;
  int64_t stages = 0;                                       // 1..layers
  std::vector<int64_t> budgets;                             // of each stage, > 0; empty: all equal, and all fits
  std::function<int64_t(int64_t begin, int64_t end)> used;  // of a stage with layers [begin, end), >= 0
  std::function<int64_t(int64_t boundary)> payload;         // of the boundary before a layer, >= 0
  SplitObjective objective = SplitObjective::memory;
  // For compute and latency, >= 0, all of them together below 2^62: of a stage with layers [begin, end), and of the hop over
  // the boundary before a layer. Integers, so that equal sums are equal.
  std::function<int64_t(int64_t stage, int64_t begin, int64_t end)> time;
  std::function<int64_t(int64_t boundary)> hop;
};

// The split that minimises the objective; among equals the smallest sum of payloads; among those the earliest first boundary,
// then the second, and so on. Compute and latency choose among the splits within all budgets; when there is none, memory
// decides. Exact, O(stages * layers^2). Every stage has at least one layer.
[[nodiscard]] std::vector<LayerRange> solve_split(const SplitProblem& problem);

}  // namespace weft
