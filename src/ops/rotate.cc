#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y) {
  check_context(context, "rotate");
  if (shape.heads < 1 || shape.size < 1 || rotary < 0 || rotary > shape.size || rotary % 2 != 0) {
    fail(ErrorKind::internal, "rotate", "wanted heads and an even number of their channels, found {} of {} and {}", shape.heads,
         shape.size, rotary);
  }
  const int64_t rows = extent_of("rotate", "x", x, 2, 0);
  check_tensor("rotate", "x", x, {rows, shape.heads * shape.size});
  check_tensor("rotate", "table", table, {rows, rotary});
  check_tensor("rotate", "y", y, {rows, shape.heads * shape.size});
  const auto run = context.on_gpu() ? cuda::rotate : context.reference() ? reference::rotate : cpu::rotate;
  run(context, shape, rotary, x, table, y);
}

}  // namespace weft::ops
