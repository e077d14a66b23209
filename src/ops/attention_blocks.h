// Softmax over positions in fixed blocks, merged in order. The blocks start at multiples of kAttentionBlock positions of the
// sequence, so the order of every sum depends on the position alone, not on how rows were split into calls.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace weft::ops {

inline constexpr int64_t kAttentionBlock = 256;  // positions; a multiple of kPageTokens

// The running softmax of one row and head.
struct RunningSoftmax {
  float max = -INFINITY;
  float sum = 0.0F;
};

// Turns the scores of one block into exp(score - block max), and returns that block's maximum and sum.
[[nodiscard]] inline RunningSoftmax exponentiate(std::span<float> scores) {
  RunningSoftmax block;
  for (const float score : scores) block.max = std::max(block.max, score);
  for (float& score : scores) {
    score = std::exp(score - block.max);
    block.sum += score;
  }
  return block;
}

// How much the sums so far and those of the new block count in the merged sums.
struct MergeFactors {
  float old_part = 0.0F;
  float new_part = 1.0F;
};

[[nodiscard]] inline MergeFactors merge(RunningSoftmax& running, const RunningSoftmax& block) {
  const float max = std::max(running.max, block.max);
  const MergeFactors factors{std::exp(running.max - max), std::exp(block.max - max)};
  running.sum = running.sum * factors.old_part + block.sum * factors.new_part;
  running.max = max;
  return factors;
}

}  // namespace weft::ops
