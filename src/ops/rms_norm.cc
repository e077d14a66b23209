#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y, NormRounding rounding) {
  check_context(context, "rms_norm");
  const int64_t rows = extent_of("rms_norm", "x", x, 2, 0);
  const int64_t size = extent_of("rms_norm", "weight", weight, 1, 0);
  check_tensor("rms_norm", "x", x, {rows, size});
  check_tensor("rms_norm", "weight", weight, {size});
  check_tensor("rms_norm", "y", y, {rows, size});
  const auto run = context.on_gpu() ? cuda::rms_norm : context.reference() ? reference::rms_norm : cpu::rms_norm;
  run(context, x, weight, eps, y, rounding);
}

}  // namespace weft::ops
