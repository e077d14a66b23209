#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat) {
  check_context(context, "mla_attention");
  check_mla_shape("mla_attention", shape);
  const int64_t rows = extent_of("mla_attention", "q", q, 2, 0);
  check_tensor("mla_attention", "q", q, {rows, shape.heads * (shape.nope + shape.rope)});
  check_tensor("mla_attention", "ql", ql, {rows, shape.heads * shape.latent});
  check_tensor("mla_attention", "lat", lat, {rows, shape.heads * shape.latent});
  if (!context.on_gpu()) check_segments("mla_attention", segments, rows);
  const auto run = context.on_gpu() ? cuda::mla_attention : context.reference() ? reference::mla_attention : cpu::mla_attention;
  run(context, shape, q, ql, segments, lat);
}

}  // namespace weft::ops
