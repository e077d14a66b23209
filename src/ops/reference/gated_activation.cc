#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y) {
  const float* gates = gate.as<float>().data();
  const float* ups = up.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t count = gate.elements();
  context.pool->parallel_for(count, task_grain(context, count, 48), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ys[i] = round_if(rounds, activate(activation, gates[i], ups[i]));
  });
}

}  // namespace weft::ops::reference
