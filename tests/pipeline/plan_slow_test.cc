// The split of layers over the whole range of distributed.md 3.7.
#include <vector>

#include <gtest/gtest.h>

#include "pipeline/plan_split.h"

namespace weft {
namespace {

// distributed.md 3.7: every layer exactly once for all 1 <= S <= L <= 128. Layers 1 apart in size keep every case different.
TEST(Split, EveryLayerExactlyOnce) {
  for (int64_t layers = 1; layers <= 128; ++layers)
    for (int64_t stages = 1; stages <= layers; ++stages) {
      SplitProblem problem;
      problem.layers = layers;
      problem.stages = stages;
      problem.used = [](int64_t a, int64_t b) { return (b - a) * 100 + (a + b) * (b - a) / 2; };
      problem.payload = [](int64_t b) { return b / 12; };
      const std::vector<LayerRange> ranges = solve_split(problem);
      ASSERT_EQ(static_cast<int64_t>(ranges.size()), stages);
      int64_t next = 0;
      for (const LayerRange& range : ranges) {
        ASSERT_EQ(range.begin.value, next);
        ASSERT_GT(range.size(), 0);
        next = range.end.value;
      }
      ASSERT_EQ(next, layers);
    }
}

}  // namespace
}  // namespace weft
