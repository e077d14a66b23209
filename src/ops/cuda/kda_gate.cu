#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g) {
  const int64_t width = dt_bias.shape[0];
  const int64_t size = width / a_log.shape[0];
  const float* zs = floats(z);
  const float* as = floats(a_log);
  const float* bias = floats(dt_bias);
  float* gs = floats(g);
  const bool bounded = lower_bound.has_value();
  const float bound = lower_bound.value_or(0.0F);
  for_each_element(
      context, z.elements(),
      [=] __device__(int64_t i) {
        const float a = expf(as[i % width / size]);
        const float value = zs[i] + bias[i % width];
        gs[i] = bounded ? bound * sigmoid(a * value) : -a * softplus(value);
      },
      "kda_gate");
}

}  // namespace weft::ops::cuda
