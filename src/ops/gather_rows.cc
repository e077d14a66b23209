#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void gather_rows(Context& context, TensorView x, std::span<const int64_t> rows, MutableTensorView out) {
  check_context(context, "gather_rows");
  const int64_t count = extent_of("gather_rows", "x", x, 2, 0);
  const int64_t size = extent_of("gather_rows", "x", x, 2, 1);
  check_tensor("gather_rows", "x", x, {count, size});
  check_tensor("gather_rows", "out", out, {static_cast<int64_t>(rows.size()), size});
  for (size_t i = 0; i < rows.size() && !context.on_gpu(); ++i) {
    if (rows[i] < 0 || rows[i] >= count) {
      fail(ErrorKind::internal, "gather_rows", "rows[{}]: wanted an index in [0, {}), found {}", i, count, rows[i]);
    }
  }
  const auto run = context.on_gpu() ? cuda::gather_rows : reference::gather_rows;
  run(context, x, rows, out);
}

}  // namespace weft::ops
