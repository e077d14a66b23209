#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind) {
  check_context(context, "gated_rms_norm");
  const int64_t rows = extent_of("gated_rms_norm", "o", o, 2, 0);
  const int64_t width = extent_of("gated_rms_norm", "o", o, 2, 1);
  const int64_t size = extent_of("gated_rms_norm", "weight", weight, 1, 0);
  if (size < 1 || width % size != 0) {
    fail(ErrorKind::internal, "gated_rms_norm", "o: wanted whole heads of size {}, found {}", size, o.shape);
  }
  check_tensor("gated_rms_norm", "o", o, {rows, width});
  check_tensor("gated_rms_norm", "weight", weight, {size});
  check_tensor("gated_rms_norm", "gate", gate, {rows, width});
  check_tensor("gated_rms_norm", "y", y, {rows, width});
  const auto run = context.on_gpu()      ? cuda::gated_rms_norm
                   : context.reference() ? reference::gated_rms_norm
                                         : cpu::gated_rms_norm;
  run(context, o, weight, eps, gate, y, kind);
}

}  // namespace weft::ops
