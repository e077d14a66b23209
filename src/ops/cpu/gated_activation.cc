#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/split.h"

namespace weft::ops::cpu {

void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y) {
  const float* gates = gate.as<float>().data();
  const float* ups = up.as<float>().data();
  float* ys = y.as<float>().data();
  const int64_t count = gate.elements();
  context.pool->parallel_for(count, task_grain(context, count, 6), [&](int64_t begin, int64_t end) {
    activate(activation, gates + begin, ups + begin, end - begin, context.rounds(), ys + begin);
  });
}

}  // namespace weft::ops::cpu
