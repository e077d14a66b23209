#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y) {
  check_context(context, "sigmoid_gate");
  const int64_t rows = extent_of("sigmoid_gate", "x", x, 2, 0);
  const int64_t size = extent_of("sigmoid_gate", "x", x, 2, 1);
  check_tensor("sigmoid_gate", "x", x, {rows, size});
  const int64_t gates = extent_of("sigmoid_gate", "gate", gate, 2, 1);
  check_tensor("sigmoid_gate", "gate", gate, {rows, gates == 1 ? 1 : size});
  check_tensor("sigmoid_gate", "y", y, {rows, size});
  const auto run = context.on_gpu() ? cuda::sigmoid_gate : context.reference() ? reference::sigmoid_gate : cpu::sigmoid_gate;
  run(context, x, gate, y);
}

}  // namespace weft::ops
