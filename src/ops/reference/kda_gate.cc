#include <cmath>

#include "base/fault.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g) {
  const int64_t heads = a_log.shape[0];
  const int64_t size = dt_bias.shape[0] / heads;
  const float* zs = z.as<float>().data();
  const float* as = a_log.as<float>().data();
  const float* bias = dt_bias.as<float>().data();
  float* gs = g.as<float>().data();
  const int64_t count = z.shape[0] * heads;
  context.pool->parallel_for(count, task_grain(context, count, 16 * size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item % heads;
      float a = std::exp(as[head]);
      for (int64_t i = 0; i < size; ++i) {
        float value = zs[item * size + i] + bias[head * size + i];
        if (on(Fault::a_log_per_channel)) a = std::exp(i < heads ? as[i] : 0.0F);
        if (on(Fault::dt_bias_after_exp)) value = zs[item * size + i] + bias[head * size + i] / a;
        gs[item * size + i] = lower_bound ? *lower_bound * sigmoid(a * value) : -a * softplus(value);
      }
    }
  });
}

}  // namespace weft::ops::reference
