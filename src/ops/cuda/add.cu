#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

void add(Context& context, TensorView a, TensorView b, MutableTensorView out) {
  const float* as = floats(a);
  const float* bs = floats(b);
  float* to = floats(out);
  const bool rounds = context.rounds();
  for_each_element(context, a.elements(), [=] __device__(int64_t i) { to[i] = round_if(rounds, as[i] + bs[i]); }, "add");
}

}  // namespace weft::ops::cuda
