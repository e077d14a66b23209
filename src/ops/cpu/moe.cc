#include <algorithm>
#include <span>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/elementwise.h"
#include "ops/math.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

constexpr int64_t kTile = 32;        // outputs of one task
constexpr size_t kGroupPairs = 256;  // bounds the hidden rows kept between the two products

// One row at one of its experts.
struct Pair {
  int32_t expert = 0;
  int64_t row = 0;
  float weight = 0.0F;
};

// The pairs of one expert: [begin, end) of the sorted pairs.
struct Run {
  const ExpertView* expert = nullptr;
  size_t begin = 0;
  size_t end = 0;
};

// What the tasks of one call read, and the buffer between the products. Grows to the largest call and stays.
struct Work {
  std::vector<Pair> pairs;           // by expert, then row
  std::vector<Run> runs;             // by expert
  std::vector<const float*> inputs;  // [pairs] rows of z
  std::vector<float> hidden;         // [pairs of a group, M]
  std::vector<const float*> hidden_rows;
};

// A tile of products for the pairs of one expert.
struct Tile {
  std::vector<float> values;  // [rows, kTile]
  std::vector<float*> rows;   // shifted so that rows[r][o] is output o of the weight

  void prepare(size_t count, int64_t first_output) {
    values.resize(count * kTile);
    rows.resize(count);
    for (size_t r = 0; r < count; ++r) rows[r] = values.data() + static_cast<int64_t>(r) * kTile - first_output;
  }
  [[nodiscard]] const float* row(size_t r) const { return values.data() + r * kTile; }
};

void sort_pairs(TensorView z, TensorView ids, TensorView weights, std::span<const ExpertView> experts, Work& work) {
  const int64_t chosen = ids.shape[1];
  const std::span<const int32_t> all = ids.as<int32_t>();
  work.pairs.clear();
  work.runs.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    work.pairs.push_back({all[i], static_cast<int64_t>(i) / chosen, weights.as<float>()[i]});
  }
  std::ranges::sort(work.pairs,
                    [](const Pair& a, const Pair& b) { return a.expert != b.expert ? a.expert < b.expert : a.row < b.row; });
  work.inputs.resize(work.pairs.size());
  for (size_t i = 0; i < work.pairs.size(); ++i) {
    work.inputs[i] = z.as<float>().data() + work.pairs[i].row * z.shape[1];
    if (i == 0 || work.pairs[i].expert != work.pairs[i - 1].expert) {
      work.runs.push_back({&experts[static_cast<size_t>(work.pairs[i].expert)], i, i});
    }
    work.runs.back().end = i + 1;
  }
}

// hidden[pair] = act(w1 z, w3 z) for the pairs of `runs`.
void first_product(Context& context, const Activation& activation, std::span<const Run> runs, Work& work) {
  const int64_t middle = runs[0].expert->w1.out;
  const size_t first_pair = runs[0].begin;
  const bool rounds = context.rounds();
  const int64_t tiles = (middle + kTile - 1) / kTile;
  const int64_t items = static_cast<int64_t>(runs.size()) * tiles;
  const auto pairs = static_cast<int64_t>(runs.back().end - first_pair);
  const int64_t cost = 2 * kTile * runs[0].expert->w1.in * pairs / static_cast<int64_t>(runs.size()) / 16;
  context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
    thread_local Tile gate;
    thread_local Tile up;
    for (int64_t item = begin; item < end; ++item) {
      const Run& run = runs[static_cast<size_t>(item / tiles)];
      const int64_t from = item % tiles * kTile;
      const int64_t to = std::min(from + kTile, middle);
      const size_t rows = run.end - run.begin;
      gate.prepare(rows, from);
      up.prepare(rows, from);
      const float* const* x = work.inputs.data() + run.begin;
      dense_rows(run.expert->w1, from, to, x, static_cast<int64_t>(rows), gate.rows.data(), rounds);
      dense_rows(run.expert->w3, from, to, x, static_cast<int64_t>(rows), up.rows.data(), rounds);
      for (size_t r = 0; r < rows; ++r) {
        float* hidden = work.hidden.data() + static_cast<int64_t>(run.begin - first_pair + r) * middle + from;
        activate(activation, gate.row(r), up.row(r), to - from, rounds, hidden);
      }
    }
  });
}

// out[row] += weight * w2 hidden, expert by expert in ascending order for every output.
void second_product(Context& context, std::span<const Run> runs, Work& work, int64_t size, float* out) {
  const int64_t middle = runs[0].expert->w1.out;
  const size_t first_pair = runs[0].begin;
  const bool rounds = context.rounds();
  const size_t pairs = runs.back().end - first_pair;
  work.hidden_rows.resize(pairs);
  for (size_t i = 0; i < pairs; ++i) work.hidden_rows[i] = work.hidden.data() + static_cast<int64_t>(i) * middle;
  const int64_t tiles = (size + kTile - 1) / kTile;
  const int64_t cost = kTile * middle * static_cast<int64_t>(pairs) / 16;
  context.pool->parallel_for(tiles, task_grain(context, tiles, cost), [&](int64_t begin, int64_t end) {
    thread_local Tile y;
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t from = tile * kTile;
      const int64_t to = std::min(from + kTile, size);
      for (const Run& run : runs) {
        const size_t rows = run.end - run.begin;
        y.prepare(rows, from);
        dense_rows(run.expert->w2, from, to, work.hidden_rows.data() + (run.begin - first_pair), static_cast<int64_t>(rows),
                   y.rows.data(), rounds);
        for (size_t r = 0; r < rows; ++r) {
          const Pair& pair = work.pairs[run.begin + r];
          float* sum = out + pair.row * size + from;
          for (int64_t o = 0; o < to - from; ++o) sum[o] += pair.weight * y.row(r)[o];
        }
      }
    }
  });
}

}  // namespace

void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         std::span<const ExpertView> experts, MutableTensorView out) {
  const int64_t size = z.shape[1];
  const std::span<float> sums = out.as<float>();
  std::ranges::fill(sums, 0.0F);
  thread_local Work work;
  sort_pairs(z, ids, weights, experts, work);
  const std::span<const Run> runs = work.runs;
  for (size_t begin = 0; begin < runs.size();) {
    size_t end = begin + 1;
    while (end < runs.size() && runs[end].end - runs[begin].begin <= kGroupPairs) ++end;
    const std::span<const Run> group = runs.subspan(begin, end - begin);
    work.hidden.resize((group.back().end - group[0].begin) * static_cast<size_t>(group[0].expert->w1.out));
    first_product(context, activation, group, work);
    second_product(context, group, work, size, sums.data());
    begin = end;
  }
  if (!context.rounds()) return;
  for (float& sum : sums) sum = round_bf16(sum);
}

}  // namespace weft::ops::cpu
