#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o) {
  check_context(context, "delta_rule");
  if (shape.key_heads < 1 || shape.value_heads < 1 || shape.value_heads % shape.key_heads != 0 || shape.key_size < 1 ||
      shape.value_size < 1) {
    fail(ErrorKind::internal, "delta_rule",
         "wanted positive sizes and whole groups of value heads, found {} key heads of {} and {} value heads of {}",
         shape.key_heads, shape.key_size, shape.value_heads, shape.value_size);
  }
  const int64_t rows = extent_of("delta_rule", "beta_logits", beta_logits, 2, 0);
  const int64_t decays = shape.value_heads * (shape.decay_per_channel ? shape.key_size : 1);
  check_tensor("delta_rule", "q", q, {rows, shape.key_heads * shape.key_size});
  check_tensor("delta_rule", "k", k, {rows, shape.key_heads * shape.key_size});
  check_tensor("delta_rule", "v", v, {rows, shape.value_heads * shape.value_size});
  check_tensor("delta_rule", "g", g, {rows, decays});
  check_tensor("delta_rule", "beta_logits", beta_logits, {rows, shape.value_heads});
  check_tensor("delta_rule", "o", o, {rows, shape.value_heads * shape.value_size});
  if (!context.on_gpu()) check_segments("delta_rule", segments, rows);
  const auto run = context.on_gpu() ? cuda::delta_rule : context.reference() ? reference::delta_rule : cpu::delta_rule;
  run(context, shape, q, k, v, g, beta_logits, segments, o);
}

}  // namespace weft::ops
