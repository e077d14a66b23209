// The two products of attention over cached rows. Queries of one key/value head share each row that is read.
#pragma once

#include <cstdint>

namespace weft::ops::cpu {

// Keys or values of one head at `count` consecutive positions of a page.
struct CachedRows {
  const float* first = nullptr;
  int64_t stride = 0;  // floats from one position to the next
  int64_t count = 0;
  int64_t size = 0;
};

// Floats of a packed query or of a query's sums: an odd number of cache lines, so that equal columns of neighbours fall into
// different sets of the cache.
[[nodiscard]] inline int64_t padded_size(int64_t size) { return ((size + 15) / 16 | 1) * 16; }

// scores[j][i] = <queries[j], row i> for j in [0, count).  queries [count, padded_size], zeros beyond the size, at a cache
// line; rows of scores are kAttentionBlock apart, and up to 3 values behind the last of each may be overwritten. Each lane of a
// sum is filled by fused multiply-add in ascending order, then the lanes are folded: the bits of a score depend on its query
// and its row alone.
void score_rows(const float* queries, int64_t count, const CachedRows& rows, float* scores);

// sums[j][c] += sum_i weights[j][i] row i[c], i ascending, by fused multiply-add.  Rows of weights are kAttentionBlock apart;
// sums [count, padded_size].
void add_weighted_rows(const float* weights, int64_t count, const CachedRows& rows, float* sums);

}  // namespace weft::ops::cpu
