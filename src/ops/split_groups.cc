#include <numeric>

#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void split_groups(Context& context, TensorView x, std::span<const int64_t> widths, std::span<const MutableTensorView> parts) {
  check_context(context, "split_groups");
  const int64_t rows = extent_of("split_groups", "x", x, 2, 0);
  const int64_t size = extent_of("split_groups", "x", x, 2, 1);
  if (widths.empty() || widths.size() > kMaxSplitParts || parts.size() != widths.size()) {
    fail(ErrorKind::internal, "split_groups", "wanted 1 to {} widths and as many parts, found {} and {}", kMaxSplitParts,
         widths.size(), parts.size());
  }
  for (const int64_t width : widths) {
    if (width < 1) fail(ErrorKind::internal, "split_groups", "widths: wanted positive ones, found {}", width);
  }
  const int64_t group = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  if (size % group != 0) {
    fail(ErrorKind::internal, "split_groups", "x: wanted whole groups of {}, found {}", group, x.shape);
  }
  check_tensor("split_groups", "x", x, {rows, size});
  for (size_t i = 0; i < parts.size(); ++i) {
    check_tensor("split_groups", "part", parts[i], {rows, size / group * widths[i]});
  }
  const auto run = context.on_gpu() ? cuda::split_groups : reference::split_groups;
  run(context, x, widths, parts);
}

}  // namespace weft::ops
