#include "ops/attention_blocks.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/paged.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

__device__ float block_max(float value) {
  __shared__ float parts[kWarps];
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float max = parts[0];
  for (int warp = 1; warp < kWarps; ++warp) max = fmaxf(max, parts[warp]);
  return max;
}

// Grid (heads, rows): a block for one query. It walks over blocks of kAttentionBlock positions: a warp for a score, then a
// thread for some columns of the latent. The geometry does not depend on the number of positions, so a recorded step serves
// them all. Dynamic shared memory: the query [rc + dr] and the running latent [rc].
__global__ void __launch_bounds__(kThreads) attention_kernel(MlaShape shape, const float* q, const float* ql,
                                                             const PagedSegment* segments, int64_t segment_count, float* lat) {
  static_assert(kAttentionBlock == kThreads, "a thread for a position");
  extern __shared__ float memory[];
  __shared__ float scores[kAttentionBlock];
  float* query = memory;
  float* mean = memory + shape.latent + shape.rope;
  const int64_t t = blockIdx.y;
  const int64_t item = t * shape.heads + blockIdx.x;
  const PagedSegment segment = segment_of(segments, segment_count, t);
  const int64_t position = segment.start + t - segment.first_row;
  const int64_t width = shape.latent + shape.rope;
  const float scale = 1.0F / sqrtf(static_cast<float>(shape.nope + shape.rope));
  const float* q_r = q + item * (shape.nope + shape.rope) + shape.nope;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    query[c] = c < shape.latent ? ql[item * shape.latent + c] : q_r[c - shape.latent];
  }
  for (int64_t c = threadIdx.x; c < shape.latent; c += kThreads) mean[c] = 0.0F;
  __syncthreads();
  float running_max = -INFINITY;
  float running_sum = 0.0F;
  for (int64_t begin = 0; begin <= position; begin += kAttentionBlock) {
    const int64_t count = min(kAttentionBlock, position + 1 - begin);
    for (int64_t i = threadIdx.x / kWarp; i < count; i += kWarps) {
      const float* row = cached_row(shape, segment, begin + i);
      float dot = 0.0F;
      for (int64_t c = threadIdx.x % kWarp; c < width; c += kWarp) dot += query[c] * row[c];
      dot = warp_sum(dot);
      if (threadIdx.x % kWarp == 0) scores[i] = scale * dot;
    }
    __syncthreads();
    const bool inside = threadIdx.x < count;
    const float score = inside ? scores[threadIdx.x] : -INFINITY;
    const float max = block_max(score);
    const float weight = inside ? expf(score - max) : 0.0F;
    const float sum = block_sum(weight);
    scores[threadIdx.x] = weight;
    __syncthreads();
    const float merged = fmaxf(running_max, max);
    const float old_part = expf(running_max - merged);
    const float new_part = expf(max - merged);
    running_sum = running_sum * old_part + sum * new_part;
    running_max = merged;
    for (int64_t c = threadIdx.x; c < shape.latent; c += kThreads) {
      float block_mean = 0.0F;
      for (int64_t i = 0; i < count; ++i) block_mean += scores[i] * cached_row(shape, segment, begin + i)[c];
      mean[c] = mean[c] * old_part + block_mean * new_part;
    }
    __syncthreads();
  }
  for (int64_t c = threadIdx.x; c < shape.latent; c += kThreads) lat[item * shape.latent + c] = mean[c] / running_sum;
}

}  // namespace

void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat) {
  if (q.shape[0] == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const PagedSegment> there = device_segments(context, segments);
  const dim3 grid(static_cast<unsigned>(shape.heads), static_cast<unsigned>(q.shape[0]));
  const auto shared = static_cast<size_t>(2 * shape.latent + shape.rope) * sizeof(float);
  attention_kernel<<<grid, kThreads, shared, stream_of(context)>>>(shape, floats(q), floats(ql), there.data(),
                                                                   static_cast<int64_t>(there.size()), floats(lat));
  launched("mla_attention");
}

}  // namespace weft::ops::cuda
