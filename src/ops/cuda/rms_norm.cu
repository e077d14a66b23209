#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"

namespace weft::ops::cuda {
namespace {

// A block for a row.
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const float* weight, int64_t size, float eps, float* y, bool rounds, bool rounds_twice) {
  const float* in = x + static_cast<int64_t>(blockIdx.x) * size;
  float* out = y + static_cast<int64_t>(blockIdx.x) * size;
  float squares = 0.0F;
  for (int64_t c = threadIdx.x; c < size; c += kThreads) squares += in[c] * in[c];
  const float factor = 1.0F / sqrtf(block_sum(squares) / static_cast<float>(size) + eps);
  for (int64_t c = threadIdx.x; c < size; c += kThreads) {
    out[c] = round_if(rounds, round_if(rounds_twice, in[c] * factor) * weight[c]);
  }
}

}  // namespace

void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y, NormRounding rounding) {
  if (x.shape[0] == 0) return;
  rms_norm_kernel<<<static_cast<unsigned>(x.shape[0]), kThreads, 0, stream_of(context)>>>(
      floats(x), floats(weight), x.shape[1], eps, floats(y), context.rounds(),
      context.rounds() && rounding == NormRounding::twice);
  launched("rms_norm");
}

}  // namespace weft::ops::cuda
