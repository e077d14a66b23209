#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/reference.h"

namespace weft::ops {

void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out) {
  check_context(context, "embed");
  check_weight("embed", "table", table, table.out, table.in);
  check_tensor("embed", "out", out, {static_cast<int64_t>(ids.size()), table.in});
  for (size_t t = 0; t < ids.size() && !context.on_gpu(); ++t) {
    if (ids[t] < 0 || ids[t] >= table.out) {
      fail(ErrorKind::internal, "embed", "row {}: wanted an id in [0, {}), found {}", t, table.out, ids[t]);
    }
  }
  const auto run = context.on_gpu() ? cuda::embed : reference::embed;
  run(context, ids, table, out);
}

}  // namespace weft::ops
