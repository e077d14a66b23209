#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"

namespace weft::ops::cuda {
namespace {

// A warp for a head of a row.
__global__ void __launch_bounds__(kThreads)
    gated_rms_norm_kernel(const float* o, const float* weight, const float* gate, int64_t items, int64_t size, float eps,
                          float* y, bool by_silu, bool rounds) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (item >= items) return;
  const int64_t at = item * size;
  const int64_t lane = threadIdx.x % kWarp;
  float squares = 0.0F;
  for (int64_t i = lane; i < size; i += kWarp) squares += o[at + i] * o[at + i];
  const float factor = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(size) + eps);
  for (int64_t i = lane; i < size; i += kWarp) {
    const float z = gate[at + i];
    y[at + i] = round_if(rounds, o[at + i] * factor * weight[i] * (by_silu ? z * sigmoid(z) : sigmoid(z)));
  }
}

}  // namespace

void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind) {
  const int64_t size = weight.shape[0];
  const int64_t items = o.elements() / size;
  if (items == 0) return;
  gated_rms_norm_kernel<<<blocks_for(items, kWarps), kThreads, 0, stream_of(context)>>>(
      floats(o), floats(weight), floats(gate), items, size, eps, floats(y), kind == NormGate::silu, context.rounds());
  launched("gated_rms_norm");
}

}  // namespace weft::ops::cuda
