#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/attention_blocks.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {
namespace {

// The key of key/value head `head` at `position`; its value is Hkv*size behind.
const float* cached_key(const GqaShape& shape, const PagedSegment& segment, int64_t position, int64_t head) {
  const float* page = segment.pages[static_cast<size_t>(position / kPageTokens)];
  return page + (position % kPageTokens) * 2 * shape.kv_heads * shape.size + head * shape.size;
}

// One query row and head at `position`.
void attend(const GqaShape& shape, const PagedSegment& segment, int64_t position, int64_t head, const float* q,
            float* block_out, float* out) {
  const int64_t size = shape.size;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  std::array<float, kAttentionBlock> scores;
  RunningSoftmax running;
  std::fill_n(out, size, 0.0F);
  for (int64_t begin = 0; begin <= position; begin += kAttentionBlock) {
    const int64_t count = std::min(kAttentionBlock, position + 1 - begin);
    for (int64_t i = 0; i < count; ++i) {
      scores[static_cast<size_t>(i)] = scale * lane_dot(q, cached_key(shape, segment, begin + i, kv_head), size);
    }
    const RunningSoftmax block = exponentiate({scores.data(), static_cast<size_t>(count)});
    std::fill_n(block_out, size, 0.0F);
    for (int64_t i = 0; i < count; ++i) {
      const float* value = cached_key(shape, segment, begin + i, kv_head) + shape.kv_heads * size;
      for (int64_t c = 0; c < size; ++c) block_out[c] += scores[static_cast<size_t>(i)] * value[c];
    }
    const MergeFactors factors = merge(running, block);
    for (int64_t c = 0; c < size; ++c) out[c] = out[c] * factors.old_part + block_out[c] * factors.new_part;
  }
  for (int64_t c = 0; c < size; ++c) out[c] /= running.sum;
}

}  // namespace

void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out) {
  const float* qs = q.as<float>().data();
  float* outs = out.as<float>().data();
  const bool rounds = context.rounds();
  for (const PagedSegment& segment : segments) {
    const int64_t items = segment.row_count * shape.heads;
    const int64_t cost = (segment.start + segment.row_count) * 2 * shape.size;
    context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> block_out;
      block_out.resize(static_cast<size_t>(shape.size));
      for (int64_t item = begin; item < end; ++item) {
        const int64_t at = (segment.first_row * shape.heads + item) * shape.size;  // row and head of the call
        attend(shape, segment, segment.start + item / shape.heads, item % shape.heads, qs + at, block_out.data(), outs + at);
        for (int64_t c = at; c < at + shape.size; ++c) outs[c] = round_if(rounds, outs[c]);
      }
    });
  }
}

}  // namespace weft::ops::reference
