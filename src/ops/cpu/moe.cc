#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/elementwise.h"
#include "ops/math.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

constexpr int64_t kTileValues = 4096;  // results of a product that a task holds at a time
constexpr int64_t kMaxTile = 128;      // outputs of a task
constexpr size_t kGroupPairs = 256;    // bounds the hidden rows kept between the two products

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
  std::vector<Pair> pairs;               // by expert, then row
  std::vector<Run> runs;                 // by expert
  PackedRows z;                          // [T, Z]
  std::vector<const std::byte*> inputs;  // [pairs] rows of z
  PackedRows hidden;                     // [pairs of a group, M]
};

// A tile of products for the pairs of one expert.
struct Tile {
  std::vector<float> values;  // [rows, width]
  std::vector<float*> rows;

  void prepare(int64_t count, int64_t width) {
    values.resize(static_cast<size_t>(count * width));
    rows.resize(static_cast<size_t>(count));
    for (int64_t r = 0; r < count; ++r) rows[static_cast<size_t>(r)] = values.data() + r * width;
  }
};

void sort_pairs(TensorView ids, TensorView weights, std::span<const ExpertView> experts, bool rounds, Work& work) {
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
    work.inputs[i] = work.z.row(work.pairs[i].row);
    if (i == 0 || work.pairs[i].expert != work.pairs[i - 1].expert) {
      const ExpertView& expert = experts[static_cast<size_t>(work.pairs[i].expert)];
      for (const WeightView* weight : {&expert.w1, &expert.w2, &expert.w3}) {
        if (row_form(weight->format, rounds) == work.z.form()) continue;
        fail(ErrorKind::internal, "moe", "expert {}: wanted a weight format of the same row form as the first expert's",
             work.pairs[i].expert);
      }
      work.runs.push_back({&expert, i, i});
    }
    work.runs.back().end = i + 1;
  }
}

int64_t rows_of(const Run& run) { return static_cast<int64_t>(run.end - run.begin); }

// Outputs of one task for the pairs of `runs`, whole units: few rows read long stretches of a weight, many rows fill a tile.
int64_t tile_width(std::span<const Run> runs) {
  int64_t rows = 1;
  for (const Run& run : runs) rows = std::max(rows, rows_of(run));
  return std::clamp<int64_t>(kTileValues / rows / kUnit * kUnit, kUnit, kMaxTile);
}

// hidden[pair] = act(w1 z, w3 z) for the pairs of `runs`.
void first_product(Context& context, const Activation& activation, std::span<const Run> runs, Work& work) {
  const WeightView& shape = runs[0].expert->w1;
  const size_t first_pair = runs[0].begin;
  const bool rounds = context.rounds();
  const int64_t width = tile_width(runs);
  const int64_t tiles = (shape.out + width - 1) / width;
  const int64_t items = static_cast<int64_t>(runs.size()) * tiles;
  const auto pairs = static_cast<int64_t>(runs.back().end - first_pair);
  const int64_t cost = 2 * width * shape.in * pairs / static_cast<int64_t>(runs.size()) / 16;
  context.pool->parallel_for(items, task_grain(context, items, cost), [&](int64_t begin, int64_t end) {
    thread_local Tile gate;
    thread_local Tile up;
    for (int64_t item = begin; item < end; ++item) {
      const Run& run = runs[static_cast<size_t>(item / tiles)];
      const int64_t from = item % tiles * width;
      const int64_t to = std::min(from + width, shape.out);
      gate.prepare(rows_of(run), to - from);
      up.prepare(rows_of(run), to - from);
      DenseProduct product{.weight = run.expert->w1,
                           .form = work.z.form(),
                           .x = work.inputs.data() + run.begin,
                           .rows = rows_of(run),
                           .y = gate.rows.data(),
                           .first = from,
                           .rounds = rounds};
      dense_rows(product, from, to);
      product.weight = run.expert->w3;
      product.y = up.rows.data();
      dense_rows(product, from, to);
      for (int64_t r = 0; r < rows_of(run); ++r) {
        float* values = gate.rows[static_cast<size_t>(r)];
        const float* factors = up.rows[static_cast<size_t>(r)];
        activate(activation, values, factors, to - from, rounds, values);
        work.hidden.pack(static_cast<int64_t>(run.begin - first_pair) + r, from, to - from, values);
      }
    }
  });
}

// out[row] += weight * w2 hidden, expert by expert in ascending order for every output.
void second_product(Context& context, std::span<const Run> runs, Work& work, int64_t size, float* out) {
  const size_t first_pair = runs[0].begin;
  const int64_t width = tile_width(runs);
  const int64_t tiles = (size + width - 1) / width;
  const int64_t cost = width * runs[0].expert->w2.in * static_cast<int64_t>(runs.back().end - first_pair) / 16;
  context.pool->parallel_for(tiles, task_grain(context, tiles, cost), [&](int64_t begin, int64_t end) {
    thread_local Tile y;
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t from = tile * width;
      const int64_t to = std::min(from + width, size);
      for (const Run& run : runs) {
        y.prepare(rows_of(run), to - from);
        dense_rows({.weight = run.expert->w2,
                    .form = work.hidden.form(),
                    .x = work.hidden.rows() + (run.begin - first_pair),
                    .rows = rows_of(run),
                    .y = y.rows.data(),
                    .first = from,
                    .rounds = context.rounds()},
                   from, to);
        for (size_t r = 0; r < y.rows.size(); ++r) {
          const Pair& pair = work.pairs[run.begin + r];
          float* sum = out + pair.row * size + from;
          for (int64_t o = 0; o < to - from; ++o) sum[o] += pair.weight * y.rows[r][o];
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
  if (ids.as<int32_t>().empty()) return;
  const WeightFormat format = experts[static_cast<size_t>(ids.as<int32_t>()[0])].w1.format;
  work.z.resize(row_form(format, context.rounds()), z.shape[0], size);
  work.z.pack_all(context, z.as<float>().data());
  sort_pairs(ids, weights, experts, context.rounds(), work);
  const std::span<const Run> runs = work.runs;
  for (size_t begin = 0; begin < runs.size();) {
    size_t end = begin + 1;
    while (end < runs.size() && runs[end].end - runs[begin].begin <= kGroupPairs) ++end;
    const std::span<const Run> group = runs.subspan(begin, end - begin);
    work.hidden.resize(work.z.form(), static_cast<int64_t>(group.back().end - group[0].begin), group[0].expert->w1.out);
    first_product(context, activation, group, work);
    second_product(context, group, work, size, sums.data());
    begin = end;
  }
  if (!context.rounds()) return;
  for (float& sum : sums) sum = round_bf16(sum);
}

}  // namespace weft::ops::cpu
