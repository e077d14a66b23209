#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/attention_blocks.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/elementwise.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

constexpr int64_t kHeadGroup = 12;  // heads of one task; they share every cached row that is read

// Per thread: the concatenated queries, scores and block sums of one head group.
struct Scratch {
  std::vector<float> queries;   // [heads, rc + dr]: ql, then q_r
  std::vector<float> scores;    // [heads, kAttentionBlock]
  std::vector<float> page_lat;  // [heads, rc]
  std::vector<float> block_lat;
  std::array<const float*, kHeadGroup> query{};
  std::array<float*, kHeadGroup> score{};
  std::array<const float*, kHeadGroup> factor{};
  std::array<float*, kHeadGroup> sum{};
  std::array<RunningSoftmax, kHeadGroup> running{};
};

// Heads [first, first + heads) of one row at `position`. q, ql and lat point to head `first`.
void attend(const MlaShape& shape, const PagedSegment& segment, int64_t position, int64_t heads, const float* q,
            const float* ql, float* lat, Scratch& work) {
  const int64_t width = shape.latent + shape.rope;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.nope + shape.rope));
  for (int64_t h = 0; h < heads; ++h) {
    const auto i = static_cast<size_t>(h);
    float* query = work.queries.data() + h * width;
    work.query[i] = query;
    query = std::copy_n(ql + h * shape.latent, shape.latent, query);
    std::copy_n(q + h * (shape.nope + shape.rope) + shape.nope, shape.rope, query);
    work.sum[i] = work.page_lat.data() + h * shape.latent;
    work.running[i] = {};
  }
  std::fill_n(lat, heads * shape.latent, 0.0F);
  for (int64_t begin = 0; begin <= position; begin += kAttentionBlock) {
    const int64_t count = std::min(kAttentionBlock, position + 1 - begin);
    const auto page_of = [&](int64_t at) { return segment.pages[static_cast<size_t>((begin + at) / kPageTokens)]; };
    for (int64_t at = 0; at < count; at += kPageTokens) {
      const int64_t tokens = std::min(kPageTokens, count - at);
      const WeightView page{WeightFormat::f32, tokens, width, reinterpret_cast<const std::byte*>(page_of(at)), nullptr};
      for (int64_t h = 0; h < heads; ++h) {
        work.score[static_cast<size_t>(h)] = work.scores.data() + h * kAttentionBlock + at;
      }
      dense_rows(page, 0, tokens, work.query.data(), heads, work.score.data(), false);
    }
    std::array<MergeFactors, kHeadGroup> factors{};
    for (int64_t h = 0; h < heads; ++h) {
      const std::span<float> scores{work.scores.data() + h * kAttentionBlock, static_cast<size_t>(count)};
      factors[static_cast<size_t>(h)] = merge(work.running[static_cast<size_t>(h)], exponentiate(scores, scale));
    }
    std::fill_n(work.block_lat.data(), heads * shape.latent, 0.0F);
    for (int64_t at = 0; at < count; at += kPageTokens) {
      const int64_t tokens = std::min(kPageTokens, count - at);
      for (int64_t h = 0; h < heads; ++h) {
        work.factor[static_cast<size_t>(h)] = work.scores.data() + h * kAttentionBlock + at;
      }
      transposed_rows(page_of(at), width, tokens, shape.latent, work.factor.data(), heads, work.sum.data());
      for (int64_t i = 0; i < heads * shape.latent; ++i) {
        work.block_lat[static_cast<size_t>(i)] += work.page_lat[static_cast<size_t>(i)];
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      const MergeFactors& factor = factors[static_cast<size_t>(h)];
      for (int64_t c = h * shape.latent; c < (h + 1) * shape.latent; ++c) {
        lat[c] = lat[c] * factor.old_part + work.block_lat[static_cast<size_t>(c)] * factor.new_part;
      }
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    const float sum = work.running[static_cast<size_t>(h)].sum;
    for (int64_t c = h * shape.latent; c < (h + 1) * shape.latent; ++c) lat[c] /= sum;
  }
}

}  // namespace

void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat) {
  const float* qs = q.as<float>().data();
  const float* qls = ql.as<float>().data();
  float* lats = lat.as<float>().data();
  const int64_t groups = (shape.heads + kHeadGroup - 1) / kHeadGroup;
  thread_local std::vector<const PagedSegment*> segment_of_row;
  segment_of_row.resize(static_cast<size_t>(q.shape[0]));
  int64_t longest = 0;  // positions
  for (const PagedSegment& segment : segments) {
    std::fill_n(segment_of_row.begin() + segment.first_row, segment.row_count, &segment);
    longest = std::max(longest, segment.start + segment.row_count);
  }
  const PagedSegment* const* row_segments = segment_of_row.data();
  const int64_t items = q.shape[0] * groups;
  const int64_t cost = longest * (2 * shape.latent + shape.rope) * std::min(kHeadGroup, shape.heads) / 16;
  context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
    thread_local Scratch work;
    work.queries.resize(static_cast<size_t>(kHeadGroup * (shape.latent + shape.rope)));
    work.scores.resize(static_cast<size_t>(kHeadGroup * kAttentionBlock));
    work.page_lat.resize(static_cast<size_t>(kHeadGroup * shape.latent));
    work.block_lat.resize(static_cast<size_t>(kHeadGroup * shape.latent));
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / groups;
      const int64_t first = item % groups * kHeadGroup;
      const PagedSegment& segment = *row_segments[row];
      const int64_t at = row * shape.heads + first;
      attend(shape, segment, segment.start + row - segment.first_row, std::min(kHeadGroup, shape.heads - first),
             qs + at * (shape.nope + shape.rope), qls + at * shape.latent, lats + at * shape.latent, work);
    }
  });
}

}  // namespace weft::ops::cpu
