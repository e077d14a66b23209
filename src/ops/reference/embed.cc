#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/weight_decode.h"

namespace weft::ops::reference {

void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out) {
  float* rows = out.as<float>().data();
  const auto count = static_cast<int64_t>(ids.size());
  context.pool->parallel_for(count, task_grain(context, count, table.in), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) decode_row(table, ids[static_cast<size_t>(t)], rows + t * table.in);
  });
}

}  // namespace weft::ops::reference
