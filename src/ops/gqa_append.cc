#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void gqa_append(Context& context, const GqaShape& shape, TensorView k, TensorView v, std::span<const PagedSegment> segments) {
  check_context(context, "gqa_append");
  check_gqa_shape("gqa_append", shape);
  const int64_t rows = extent_of("gqa_append", "k", k, 2, 0);
  check_tensor("gqa_append", "k", k, {rows, shape.kv_heads * shape.size});
  check_tensor("gqa_append", "v", v, {rows, shape.kv_heads * shape.size});
  if (!context.on_gpu()) check_segments("gqa_append", segments, rows);
  const auto run = context.on_gpu() ? cuda::gqa_append : reference::gqa_append;
  run(context, shape, k, v, segments);
}

}  // namespace weft::ops
