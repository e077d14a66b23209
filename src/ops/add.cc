#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void add(Context& context, TensorView a, TensorView b, MutableTensorView out) {
  check_context(context, "add");
  const int64_t rows = extent_of("add", "a", a, 2, 0);
  const int64_t size = extent_of("add", "a", a, 2, 1);
  check_tensor("add", "a", a, {rows, size});
  check_tensor("add", "b", b, {rows, size});
  check_tensor("add", "out", out, {rows, size});
  const auto run = context.on_gpu() ? cuda::add : context.reference() ? reference::add : cpu::add;
  run(context, a, b, out);
}

}  // namespace weft::ops
