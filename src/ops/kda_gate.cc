#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g) {
  check_context(context, "kda_gate");
  const int64_t rows = extent_of("kda_gate", "z", z, 2, 0);
  const int64_t heads = extent_of("kda_gate", "a_log", a_log, 1, 0);
  const int64_t width = extent_of("kda_gate", "dt_bias", dt_bias, 1, 0);
  if (heads < 1 || width % heads != 0) {
    fail(ErrorKind::internal, "kda_gate", "dt_bias: wanted whole heads of {}, found {}", heads, dt_bias.shape);
  }
  check_tensor("kda_gate", "z", z, {rows, width});
  check_tensor("kda_gate", "a_log", a_log, {heads});
  check_tensor("kda_gate", "dt_bias", dt_bias, {width});
  check_tensor("kda_gate", "g", g, {rows, width});
  const auto run = context.on_gpu() ? cuda::kda_gate : context.reference() ? reference::kda_gate : cpu::kda_gate;
  run(context, z, a_log, dt_bias, lower_bound, g);
}

}  // namespace weft::ops
