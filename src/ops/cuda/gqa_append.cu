#include "ops/cuda/cuda.h"
#include "ops/cuda/paged.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// A block for a row; width: of k and of v.
__global__ void __launch_bounds__(kThreads)
    append_kernel(const float* k, const float* v, int64_t width, const PagedSegment* segments, int64_t segment_count) {
  const int64_t t = blockIdx.x;
  const PagedSegment& segment = segment_of(segments, segment_count, t);
  float* row = page_row(segment, segment.start + t - segment.first_row, 2 * width);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    row[i] = k[t * width + i];
    row[width + i] = v[t * width + i];
  }
}

}  // namespace

void gqa_append(Context& context, const GqaShape& shape, TensorView k, TensorView v, std::span<const PagedSegment> segments) {
  if (k.shape[0] == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const PagedSegment> there = device_segments(context, segments);
  append_kernel<<<static_cast<unsigned>(k.shape[0]), kThreads, 0, stream_of(context)>>>(
      floats(k), floats(v), shape.kv_heads * shape.size, there.data(), static_cast<int64_t>(there.size()));
  launched("gqa_append");
}

}  // namespace weft::ops::cuda
