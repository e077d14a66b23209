// Operators of one element: a thread for each, in a grid of at most kMaxBlocks blocks.
#pragma once

#include <algorithm>

#include "ops/cuda/common.cuh"

namespace weft::ops::cuda {

inline constexpr unsigned kMaxBlocks = 2048;

template <class Body>
__global__ void __launch_bounds__(kThreads) each_kernel(int64_t count, Body body) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    body(i);
  }
}

// body(i) on the device for each i in [0, count).
template <class Body>
void for_each_element(Context& context, int64_t count, const Body& body, std::string_view op) {
  if (count == 0) return;
  each_kernel<<<std::min(blocks_for(count, kThreads), kMaxBlocks), kThreads, 0, stream_of(context)>>>(count, body);
  launched(op);
}

}  // namespace weft::ops::cuda
