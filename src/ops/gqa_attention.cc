#include "ops/check.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out) {
  check_context(context, "gqa_attention");
  check_gqa_shape("gqa_attention", shape);
  const int64_t rows = extent_of("gqa_attention", "q", q, 2, 0);
  check_tensor("gqa_attention", "q", q, {rows, shape.heads * shape.size});
  check_tensor("gqa_attention", "out", out, {rows, shape.heads * shape.size});
  if (!context.on_gpu()) check_segments("gqa_attention", segments, rows);
  const auto run = context.on_gpu() ? cuda::gqa_attention : context.reference() ? reference::gqa_attention : cpu::gqa_attention;
  run(context, shape, q, segments, out);
}

}  // namespace weft::ops
