#include "ops/cpu/attention_rows.h"

#include <algorithm>

#include "ops/attention_blocks.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
// Sums in registers: 24 of 32 or 12 of 16.
constexpr int kMaxQueries = kLanes == 16 ? 6 : 3;
constexpr int kPositions = 4;  // of a tile of scores
constexpr int kColumns = 4;    // vectors of a tile of sums
// Positions taken together by all queries. Rows may lie a power of two apart and share their sets of L1, so there are few.
constexpr int64_t kScoreChunk = 8;
constexpr int64_t kSumChunk = 16;

// Calls body with tiles of at most kMaxQueries queries, as even as they can be: body.template operator()<kQueries>(first).
template <int kQueries, class Body>
HWY_INLINE void tile_of(int64_t queries, int64_t first, const Body& body) {
  if (queries == kQueries) return body.template run<kQueries>(first);
  if constexpr (kQueries > 1) tile_of<kQueries - 1>(queries, first, body);
}
template <class Body>
HWY_INLINE void for_tiles(int64_t count, const Body& body) {
  int64_t tiles = (count + kMaxQueries - 1) / kMaxQueries;
  for (int64_t first = 0; first < count; --tiles) {
    const int64_t queries = (count - first + tiles - 1) / tiles;
    tile_of<kMaxQueries>(queries, first, body);
    first += queries;
  }
}

// Asks for the line `ahead` floats behind p. It may lie beyond the page, which a prefetch ignores: its address is a number.
HWY_INLINE void ask_for(const float* p, int64_t ahead) {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead) * sizeof(float)));
}

// The first `count` lanes from p, zeros beyond.
HWY_INLINE V load_part(const float* p, int64_t count) {
  alignas(64) float values[kLanes] = {};
  std::copy_n(p, count, values);
  return hn::Load(D(), values);
}

#if HWY_TARGET == HWY_SCALAR
// The lanes of four sums.
HWY_INLINE void store_totals(const V* sums, float* to) {
  for (int p = 0; p < kPositions; ++p) to[p] = hn::GetLane(sums[p]);
}
#else
// The sum of the vector's parts of four lanes.
template <class DX>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4> > four_lanes(DX /*d*/, hn::Vec<DX> v) {
  if constexpr (hn::MaxLanes(DX()) == 4) {
    return v;
  } else {
    const hn::Half<DX> half;
    return four_lanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The lanes of four sums, added in a fixed order.
HWY_INLINE void store_totals(const V* sums, float* to) {
  const D d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<D> > pairs;
  const V ab = hn::Add(hn::InterleaveLower(d, sums[0], sums[1]), hn::InterleaveUpper(d, sums[0], sums[1]));
  const V cd = hn::Add(hn::InterleaveLower(d, sums[2], sums[3]), hn::InterleaveUpper(d, sums[2], sums[3]));
  const auto first = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto second = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  hn::StoreU(four_lanes(d, hn::Add(hn::BitCast(d, first), hn::BitCast(d, second))), hn::FixedTag<float, 4>(), to);
}
#endif

// Tiles of scores of positions [begin, end).
struct Scores {
  const float* queries;
  const CachedRows& rows;
  float* scores;
  int64_t begin;
  int64_t end;

  template <int kQueries>
  HWY_NOINLINE void run(int64_t first) const {
    for (int64_t position = begin; position < end; position += kPositions) {
      if (rows.size % kLanes == 0) {
        tile<kQueries, false>(first, position);
      } else {
        tile<kQueries, true>(first, position);
      }
    }
  }

  // The last position stands for those behind it.
  template <int kQueries, bool kTail>
  HWY_INLINE void tile(int64_t first, int64_t position) const {
    const D d;
    const int64_t padded = padded_size(rows.size);
    const float* query = queries + first * padded;
    const float* row[kPositions];
    for (int p = 0; p < kPositions; ++p) row[p] = rows.first + std::min(position + p, rows.count - 1) * rows.stride;
    V sum[kQueries][kPositions];
    for (int q = 0; q < kQueries; ++q) {
      for (int p = 0; p < kPositions; ++p) sum[q][p] = hn::Zero(d);
    }
    int64_t c = 0;
    for (; c + kLanes <= rows.size; c += kLanes) {
      V x[kQueries];
      for (int q = 0; q < kQueries; ++q) x[q] = hn::LoadU(d, query + q * padded + c);
      for (int p = 0; p < kPositions; ++p) {
        ask_for(row[p] + c, kScoreChunk * rows.stride);
        const V key = hn::LoadU(d, row[p] + c);
        for (int q = 0; q < kQueries; ++q) sum[q][p] = hn::MulAdd(x[q], key, sum[q][p]);
      }
    }
    if constexpr (kTail) {
      for (int p = 0; p < kPositions; ++p) {
        const V key = load_part(row[p] + c, rows.size - c);
        for (int q = 0; q < kQueries; ++q) sum[q][p] = hn::MulAdd(hn::LoadU(d, query + q * padded + c), key, sum[q][p]);
      }
    }
    for (int q = 0; q < kQueries; ++q) store_totals(sum[q], scores + (first + q) * kAttentionBlock + position);
  }
};

void scores_of(const float* queries, int64_t count, const CachedRows& rows, float* scores) {
  for (int64_t begin = 0; begin < rows.count; begin += kScoreChunk) {
    for_tiles(count, Scores{queries, rows, scores, begin, std::min(begin + kScoreChunk, rows.count)});
  }
}

// Tiles of sums over positions [begin, end).
struct Sums {
  const float* weights;
  const CachedRows& rows;
  float* sums;
  int64_t begin;
  int64_t end;

  template <int kQueries>
  HWY_NOINLINE void run(int64_t first) const {
    int64_t c = 0;
    for (; c + kColumns * kLanes <= rows.size; c += kColumns * kLanes) tile<kQueries, kColumns, false>(first, c);
    for (; c + kLanes <= rows.size; c += kLanes) tile<kQueries, 1, false>(first, c);
    if (c < rows.size) tile<kQueries, 1, true>(first, c);
  }

  // Vectors of columns from `column` on; kTail: a part of one.
  template <int kQueries, int kVectors, bool kTail>
  HWY_INLINE void tile(int64_t first, int64_t column) const {
    const D d;
    const int64_t padded = padded_size(rows.size);
    float* to = sums + first * padded + column;
    const float* weight = weights + first * kAttentionBlock;
    V sum[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) sum[q][v] = hn::LoadU(d, to + q * padded + v * kLanes);
    }
    for (int64_t i = begin; i < end; ++i) {
      const float* row = rows.first + i * rows.stride + column;
      V factor[kQueries];
      for (int q = 0; q < kQueries; ++q) factor[q] = hn::Set(d, weight[q * kAttentionBlock + i]);
      for (int v = 0; v < kVectors; ++v) {
        if (first == 0) ask_for(row + v * kLanes, kSumChunk * rows.stride);
        const V value = kTail ? load_part(row, rows.size - column) : hn::LoadU(d, row + v * kLanes);
        for (int q = 0; q < kQueries; ++q) sum[q][v] = hn::MulAdd(factor[q], value, sum[q][v]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[q][v], d, to + q * padded + v * kLanes);
    }
  }
};

void weighted_sums_of(const float* weights, int64_t count, const CachedRows& rows, float* sums) {
  for (int64_t begin = 0; begin < rows.count; begin += kSumChunk) {
    for_tiles(count, Sums{weights, rows, sums, begin, std::min(begin + kSumChunk, rows.count)});
  }
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(scores_of);
HWY_EXPORT(weighted_sums_of);

void score_rows(const float* queries, int64_t count, const CachedRows& rows, float* scores) {
  HWY_DYNAMIC_DISPATCH(scores_of)(queries, count, rows, scores);
}

void add_weighted_rows(const float* weights, int64_t count, const CachedRows& rows, float* sums) {
  HWY_DYNAMIC_DISPATCH(weighted_sums_of)(weights, count, rows, sums);
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
