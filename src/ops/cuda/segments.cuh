// Segments that run side by side. A segment that reads the state which the one before it writes (a checkpoint inside a row
// group) is worked on by the same block, after it.
#pragma once

#include "ops/cuda/common.cuh"

namespace weft::ops::cuda {

__device__ inline bool continues_previous(const StateSegment* segments, int64_t index) {
  return index > 0 && segments[index].in != nullptr && segments[index].in == segments[index - 1].out;
}

// Calls body(segment) for segment `index` and those that continue it; not at all if it continues another itself.
template <class Body>
__device__ void for_each_chained(const StateSegment* segments, int64_t count, int64_t index, const Body& body) {
  if (continues_previous(segments, index)) return;
  do {
    body(segments[index]);
    ++index;
  } while (index < count && continues_previous(segments, index));
}

}  // namespace weft::ops::cuda
