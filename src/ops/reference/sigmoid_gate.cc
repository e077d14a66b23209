#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y) {
  const float* xs = x.as<float>().data();
  const float* gates = gate.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t count = x.elements();
  const int64_t shared = gate.shape[1] == 1 ? x.shape[1] : 1;  // elements of one gate
  context.pool->parallel_for(count, task_grain(context, count, 16), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ys[i] = round_if(rounds, xs[i] * round_if(rounds, sigmoid(gates[i / shared])));
  });
}

}  // namespace weft::ops::reference
