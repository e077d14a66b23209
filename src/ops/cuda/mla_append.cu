#include "ops/cuda/cuda.h"
#include "ops/cuda/paged.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// A block for a row.
__global__ void __launch_bounds__(kThreads)
    append_kernel(MlaShape shape, const float* c, const float* k_r, const PagedSegment* segments, int64_t segment_count) {
  const int64_t t = blockIdx.x;
  const PagedSegment& segment = segment_of(segments, segment_count, t);
  float* row = cached_row(shape, segment, segment.start + t - segment.first_row);
  for (int64_t i = threadIdx.x; i < shape.latent; i += kThreads) row[i] = c[t * shape.latent + i];
  for (int64_t i = threadIdx.x; i < shape.rope; i += kThreads) row[shape.latent + i] = k_r[t * shape.rope + i];
}

}  // namespace

void mla_append(Context& context, const MlaShape& shape, TensorView c, TensorView k_r, std::span<const PagedSegment> segments) {
  if (c.shape[0] == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const PagedSegment> there = device_segments(context, segments);
  append_kernel<<<static_cast<unsigned>(c.shape[0]), kThreads, 0, stream_of(context)>>>(
      shape, floats(c), floats(k_r), there.data(), static_cast<int64_t>(there.size()));
  launched("mla_append");
}

}  // namespace weft::ops::cuda
