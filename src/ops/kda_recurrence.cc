#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void kda_recurrence(Context& context, TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta_logits,
                    std::span<const StateSegment> segments, MutableTensorView o) {
  check_context(context, "kda_recurrence");
  const int64_t rows = extent_of("kda_recurrence", "beta_logits", beta_logits, 2, 0);
  const int64_t heads = extent_of("kda_recurrence", "beta_logits", beta_logits, 2, 1);
  const int64_t width = extent_of("kda_recurrence", "q", q, 2, 1);
  if (heads < 1 || width % heads != 0) {
    fail(ErrorKind::internal, "kda_recurrence", "q: wanted whole heads of {}, found {}", heads, q.shape);
  }
  check_tensor("kda_recurrence", "beta_logits", beta_logits, {rows, heads});
  check_tensor("kda_recurrence", "q", q, {rows, width});
  check_tensor("kda_recurrence", "k", k, {rows, width});
  check_tensor("kda_recurrence", "v", v, {rows, width});
  check_tensor("kda_recurrence", "g", g, {rows, width});
  check_tensor("kda_recurrence", "o", o, {rows, width});
  if (!context.on_gpu()) check_segments("kda_recurrence", segments, rows);
  const auto run = context.on_gpu()      ? cuda::kda_recurrence
                   : context.reference() ? reference::kda_recurrence
                                         : cpu::kda_recurrence;
  run(context, q, k, v, g, beta_logits, segments, o);
}

}  // namespace weft::ops
