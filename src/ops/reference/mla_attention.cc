#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/fault.h"
#include "ops/attention_blocks.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {
namespace {

// Row `position` of the sequence: the latent, then k_r.
const float* cached_row(const MlaShape& shape, const PagedSegment& segment, int64_t position) {
  return segment.pages[static_cast<size_t>(position / kPageTokens)] + (position % kPageTokens) * (shape.latent + shape.rope);
}

// One query row and head at `position`.
void attend(const MlaShape& shape, const PagedSegment& segment, int64_t position, const float* q_r, const float* ql,
            float* block_lat, float* lat) {
  const int64_t scored = on(Fault::mla_scale_from_nope) ? shape.nope : shape.nope + shape.rope;
  const float scale = 1.0F / std::sqrt(static_cast<float>(scored));
  std::array<float, kAttentionBlock> scores;
  RunningSoftmax running;
  std::fill_n(lat, shape.latent, 0.0F);
  for (int64_t begin = 0; begin <= position; begin += kAttentionBlock) {
    const int64_t count = std::min(kAttentionBlock, position + 1 - begin);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = cached_row(shape, segment, begin + i);
      const float rope_part = on(Fault::k_rope_dropped) ? 0.0F : lane_dot(q_r, row + shape.latent, shape.rope);
      scores[static_cast<size_t>(i)] = scale * (lane_dot(ql, row, shape.latent) + rope_part);
    }
    const RunningSoftmax block = exponentiate({scores.data(), static_cast<size_t>(count)});
    std::fill_n(block_lat, shape.latent, 0.0F);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = cached_row(shape, segment, begin + i);
      for (int64_t c = 0; c < shape.latent; ++c) block_lat[c] += scores[static_cast<size_t>(i)] * row[c];
    }
    const MergeFactors factors = merge(running, block);
    for (int64_t c = 0; c < shape.latent; ++c) lat[c] = lat[c] * factors.old_part + block_lat[c] * factors.new_part;
  }
  for (int64_t c = 0; c < shape.latent; ++c) lat[c] /= running.sum;
}

}  // namespace

void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat) {
  const float* qs = q.as<float>().data();
  const float* qls = ql.as<float>().data();
  float* lats = lat.as<float>().data();
  for (const PagedSegment& segment : segments) {
    const int64_t items = segment.row_count * shape.heads;
    const int64_t cost = (segment.start + segment.row_count) * (2 * shape.latent + shape.rope);
    context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> block_lat;
      block_lat.resize(static_cast<size_t>(shape.latent));
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / shape.heads;
        const int64_t at = segment.first_row * shape.heads + item;  // row and head of the call
        attend(shape, segment, segment.start + row, qs + at * (shape.nope + shape.rope) + shape.nope, qls + at * shape.latent,
               block_lat.data(), lats + at * shape.latent);
      }
    });
  }
}

}  // namespace weft::ops::reference
