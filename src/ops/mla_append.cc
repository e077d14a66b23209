#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void mla_append(Context& context, const MlaShape& shape, TensorView c, TensorView k_r, std::span<const PagedSegment> segments) {
  check_context(context, "mla_append");
  check_mla_shape("mla_append", shape);
  const int64_t rows = extent_of("mla_append", "c", c, 2, 0);
  check_tensor("mla_append", "c", c, {rows, shape.latent});
  check_tensor("mla_append", "k_r", k_r, {rows, shape.rope});
  if (!context.on_gpu()) check_segments("mla_append", segments, rows);
  const auto run = context.on_gpu() ? cuda::mla_append : reference::mla_append;
  run(context, shape, c, k_r, segments);
}

}  // namespace weft::ops
