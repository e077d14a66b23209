#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention_blocks.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/transposed.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

// Heads of one task: they share every cached page that is read and packed.
constexpr int64_t kMinHeads = 6;
constexpr int64_t kMaxHeads = 48;

int64_t heads_of_task(const Context& context, int64_t rows, int64_t heads) {
  const int64_t tasks = int64_t{2} * context.pool->threads();
  const int64_t even = (rows * heads + tasks - 1) / tasks;
  return std::min(heads, std::clamp(even, kMinHeads, kMaxHeads));
}

// One row of a sequence.
struct Row {
  const PagedSegment* segment = nullptr;
  int64_t position = 0;
};

// Per thread: queries, scores and block sums of the heads of one task.
struct Scratch {
  void resize(int64_t heads, const MlaShape& shape) {
    query.resize(static_cast<size_t>(shape.latent + shape.rope));
    scores.resize(static_cast<size_t>(heads * kAttentionBlock));
    block_lat.resize(static_cast<size_t>(heads * shape.latent));
    score.resize(static_cast<size_t>(heads));
    sum.resize(static_cast<size_t>(heads));
    running.resize(static_cast<size_t>(heads));
    merged.resize(static_cast<size_t>(heads));
    queries.resize(RowForm::f32, heads, shape.latent + shape.rope);
    for (int64_t h = 0; h < heads; ++h) sum[static_cast<size_t>(h)] = block_lat.data() + h * shape.latent;
  }
  std::vector<float> query;      // [rc + dr]: ql, then q_r
  std::vector<float> scores;     // [heads, kAttentionBlock]
  std::vector<float> block_lat;  // [heads, rc]
  std::vector<float*> score;     // [heads]: scores of a page
  std::vector<float*> sum;       // [heads]: rows of block_lat
  std::vector<RunningSoftmax> running;
  std::vector<MergeFactors> merged;
  PackedRows queries;  // [heads, rc + dr]
};

// Heads [first, first + heads) of one row. q, ql and lat point to head `first`.
void attend(const MlaShape& shape, const Row& row, int64_t heads, const float* q, const float* ql, float* lat, Scratch& work) {
  const int64_t width = shape.latent + shape.rope;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.nope + shape.rope));
  for (int64_t h = 0; h < heads; ++h) {
    float* query_r = std::copy_n(ql + h * shape.latent, shape.latent, work.query.data());
    std::copy_n(q + h * (shape.nope + shape.rope) + shape.nope, shape.rope, query_r);
    work.queries.pack(h, 0, width, work.query.data());
    work.running[static_cast<size_t>(h)] = {};
  }
  std::fill_n(lat, heads * shape.latent, 0.0F);
  for (int64_t begin = 0; begin <= row.position; begin += kAttentionBlock) {
    const int64_t count = std::min(kAttentionBlock, row.position + 1 - begin);
    const auto page_at = [&](int64_t at) {  // the rows that count of the page at `at` of the block
      const float* page = row.segment->pages[static_cast<size_t>((begin + at) / kPageTokens)];
      for (int64_t h = 0; h < heads; ++h) {
        work.score[static_cast<size_t>(h)] = work.scores.data() + h * kAttentionBlock + at;
      }
      return WeightView{WeightFormat::f32, std::min(kPageTokens, count - at), width, reinterpret_cast<const std::byte*>(page),
                        nullptr};
    };
    for (int64_t at = 0; at < count; at += kPageTokens) {
      const WeightView page = page_at(at);
      dense_rows({.weight = page, .x = work.queries.rows(), .rows = heads, .y = work.score.data()}, 0, page.out);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const std::span<float> scores{work.scores.data() + h * kAttentionBlock, static_cast<size_t>(count)};
      work.merged[static_cast<size_t>(h)] = merge(work.running[static_cast<size_t>(h)], exponentiate(scores, scale));
    }
    std::fill_n(work.block_lat.data(), heads * shape.latent, 0.0F);
    for (int64_t at = 0; at < count; at += kPageTokens) {
      const WeightView page = page_at(at);
      add_transposed_rows(page, shape.latent, work.score.data(), heads, work.sum.data());
    }
    for (int64_t h = 0; h < heads; ++h) {
      const MergeFactors& factor = work.merged[static_cast<size_t>(h)];
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
  thread_local std::vector<Row> rows_of_call;
  rows_of_call.resize(static_cast<size_t>(q.shape[0]));
  int64_t longest = 0;  // positions
  for (const PagedSegment& segment : segments) {
    for (int64_t t = 0; t < segment.row_count; ++t) {
      rows_of_call[static_cast<size_t>(segment.first_row + t)] = {&segment, segment.start + t};
    }
    longest = std::max(longest, segment.start + segment.row_count);
  }
  const Row* rows = rows_of_call.data();
  const int64_t size = heads_of_task(context, q.shape[0], shape.heads);
  const int64_t groups = (shape.heads + size - 1) / size;
  const int64_t items = q.shape[0] * groups;
  const int64_t cost = longest * (2 * shape.latent + shape.rope) * size / 16;
  context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
    thread_local Scratch work;
    work.resize(size, shape);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / groups;
      const int64_t first = item % groups * size;
      const int64_t at = row * shape.heads + first;
      attend(shape, rows[row], std::min(size, shape.heads - first), qs + at * (shape.nope + shape.rope),
             qls + at * shape.latent, lats + at * shape.latent, work);
    }
  });
}

}  // namespace weft::ops::cpu
