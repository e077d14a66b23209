// Rows of sequences in pages.
#pragma once

#include "ops/cuda/common.cuh"

namespace weft::ops::cuda {

// The segment of row t; every row has one.
__device__ inline const PagedSegment& segment_of(const PagedSegment* segments, int64_t count, int64_t t) {
  int64_t index = 0;
  while (index + 1 < count && (t < segments[index].first_row || t >= segments[index].first_row + segments[index].row_count)) {
    ++index;
  }
  return segments[index];
}

// Row `position` of the sequence, of `size` values.
__device__ inline float* page_row(const PagedSegment& segment, int64_t position, int64_t size) {
  float* const* pages = segment.pages.data();
  return pages[position / kPageTokens] + position % kPageTokens * size;
}

// Row `position` of the sequence: the latent, then k_r.
__device__ inline float* cached_row(const MlaShape& shape, const PagedSegment& segment, int64_t position) {
  return page_row(segment, position, shape.latent + shape.rope);
}

}  // namespace weft::ops::cuda
