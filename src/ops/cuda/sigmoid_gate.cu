#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y) {
  const float* xs = floats(x);
  const float* gates = floats(gate);
  float* ys = floats(y);
  const bool rounds = context.rounds();
  const int64_t shared = gate.shape[1] == 1 ? x.shape[1] : 1;  // elements of one gate
  for_each_element(
      context, x.elements(),
      [=] __device__(int64_t i) { ys[i] = round_if(rounds, xs[i] * round_if(rounds, sigmoid(gates[i / shared]))); },
      "sigmoid_gate");
}

}  // namespace weft::ops::cuda
