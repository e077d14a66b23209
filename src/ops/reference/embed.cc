#include <algorithm>

#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/weight_decode.h"

namespace weft::ops::reference {

void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out) {
  float* rows = out.as<float>().data();
  const auto count = static_cast<int64_t>(ids.size());
  context.pool->parallel_for(count, task_grain(context, count, table.in), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const row = rows + t * table.in;
      decode_row(table, ids[static_cast<size_t>(t)], row);
      if (context.rounds()) std::transform(row, row + table.in, row, round_bf16);
    }
  });
}

}  // namespace weft::ops::reference
