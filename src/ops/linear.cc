#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32) {
  check_context(context, "linear");
  const int64_t rows = extent_of("linear", "x", x, 2, 0);
  check_weight("linear", "weight", weight, weight.out, weight.in);
  check_tensor("linear", "x", x, {rows, weight.in});
  check_tensor("linear", "y", y, {rows, weight.out});
  const auto run = context.on_gpu() ? cuda::linear : context.reference() ? reference::linear : cpu::linear;
  run(context, x, weight, y, keep_f32);
}

}  // namespace weft::ops
