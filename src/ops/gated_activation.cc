#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void gated_activation(Context& context, const Activation& activation, TensorView gate, TensorView up, MutableTensorView y) {
  check_context(context, "gated_activation");
  const int64_t rows = extent_of("gated_activation", "gate", gate, 2, 0);
  const int64_t size = extent_of("gated_activation", "gate", gate, 2, 1);
  check_tensor("gated_activation", "gate", gate, {rows, size});
  check_tensor("gated_activation", "up", up, {rows, size});
  check_tensor("gated_activation", "y", y, {rows, size});
  const auto run = context.on_gpu()      ? cuda::gated_activation
                   : context.reference() ? reference::gated_activation
                                         : cpu::gated_activation;
  run(context, activation, gate, up, y);
}

}  // namespace weft::ops
