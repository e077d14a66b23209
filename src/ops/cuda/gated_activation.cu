#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y) {
  const ActivationRule rule(activation);
  const float* gates = floats(gate);
  const float* ups = floats(up);
  float* ys = floats(y);
  const bool rounds = context.rounds();
  for_each_element(
      context, gate.elements(), [=] __device__(int64_t i) { ys[i] = round_if(rounds, activate(rule, gates[i], ups[i])); },
      "gated_activation");
}

}  // namespace weft::ops::cuda
