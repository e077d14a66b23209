#include <cmath>

#include "base/fault.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {

void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind) {
  const int64_t size = weight.shape[0];
  const int64_t count = o.elements() / size;  // rows times heads
  const float* os = o.as<float>().data();
  const float* w = weight.as<float>().data();
  const float* gates = gate.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  const bool by_silu = kind == NormGate::silu || on(Fault::silu_output_gate);
  context.pool->parallel_for(count, task_grain(context, count, 16 * size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t at = item * size;
      float square = lane_dot(os + at, os + at, size);
      if (on(Fault::gate_before_o_norm)) {
        square = 0.0F;
        for (int64_t i = at; i < at + size; ++i) square += os[i] * os[i] * sigmoid(gates[i]) * sigmoid(gates[i]);
      }
      const float factor = 1.0F / std::sqrt(square / static_cast<float>(size) + eps);
      for (int64_t i = 0; i < size; ++i) {
        const float gate_value = by_silu ? silu(gates[at + i]) : sigmoid(gates[at + i]);
        ys[at + i] = round_if(rounds, os[at + i] * factor * w[i] * gate_value);
      }
    }
  });
}

}  // namespace weft::ops::reference
