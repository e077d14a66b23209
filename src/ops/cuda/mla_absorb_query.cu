#include "ops/cuda/cuda.h"
#include "ops/cuda/weight.cuh"
#include "ops/mla_weights.h"

namespace weft::ops::cuda {
namespace {

// Grid (blocks of latent columns, heads, rows); a thread for a column of one head.
__global__ void __launch_bounds__(kThreads) absorb_kernel(MlaShape shape, const float* q, WeightView kv_b, float* ql) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= shape.latent) return;
  const int64_t head = blockIdx.y;
  const int64_t item = static_cast<int64_t>(blockIdx.z) * shape.heads + head;
  const float* factors = q + item * (shape.nope + shape.rope);
  float sum = 0.0F;
  if (alone_keys(shape, kv_b)) {
    for (int64_t i = 0; i < shape.nope; ++i) sum += factors[i] * weight_at(kv_b, head * shape.latent + c, i);
  } else {
    for (int64_t i = 0; i < shape.nope; ++i) {
      sum += factors[i] * weight_at(kv_b, head * (shape.nope + shape.value) + i, c);
    }
  }
  ql[item * shape.latent + c] = sum;
}

}  // namespace

void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql) {
  if (q.shape[0] == 0) return;
  const dim3 grid(blocks_for(shape.latent, kThreads), static_cast<unsigned>(shape.heads), static_cast<unsigned>(q.shape[0]));
  absorb_kernel<<<grid, kThreads, 0, stream_of(context)>>>(shape, floats(q), kv_b, floats(ql));
  launched("mla_absorb_query");
}

}  // namespace weft::ops::cuda
