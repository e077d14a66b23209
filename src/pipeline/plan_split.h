// The split of a row of layers into stages, apart from what the numbers mean.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/units.h"

namespace weft {

struct SplitProblem {
  int64_t layers = 0;
  int64_t stages = 0;                                       // 1..layers
  std::vector<int64_t> budgets;                             // of each stage, > 0; empty: all equal
  std::function<int64_t(int64_t begin, int64_t end)> used;  // of a stage with layers [begin, end), >= 0
  std::function<int64_t(int64_t boundary)> payload;         // of the boundary before a layer, >= 0
};

// The split that minimises the largest used/budget; among equals the smallest sum of payloads; among those the earliest first
// boundary, then the second, and so on. Exact, O(stages * layers^2). Every stage has at least one layer.
[[nodiscard]] std::vector<LayerRange> solve_split(const SplitProblem& problem);

}  // namespace weft
