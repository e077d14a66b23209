#include <algorithm>
#include <numeric>

#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void split_groups(Context& context, TensorView x, std::span<const int64_t> widths, std::span<const MutableTensorView> parts) {
  const int64_t rows = x.shape[0];
  const int64_t size = x.shape[1];
  const int64_t groups = size / std::accumulate(widths.begin(), widths.end(), int64_t{0});
  const float* xs = x.as<float>().data();
  context.pool->parallel_for(rows, task_grain(context, rows, size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* from = xs + t * size;
      for (int64_t group = 0; group < groups; ++group) {
        for (size_t i = 0; i < parts.size(); ++i) {
          std::copy_n(from, widths[i], parts[i].as<float>().data() + (t * groups + group) * widths[i]);
          from += widths[i];
        }
      }
    }
  });
}

}  // namespace weft::ops::reference
