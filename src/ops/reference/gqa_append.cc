#include <algorithm>

#include "ops/reference/reference.h"

namespace weft::ops::reference {

void gqa_append(Context& /*context*/, const GqaShape& shape, TensorView k, TensorView v,
                std::span<const PagedSegment> segments) {
  const int64_t width = shape.kv_heads * shape.size;
  const float* ks = k.as<float>().data();
  const float* vs = v.as<float>().data();
  for (const PagedSegment& segment : segments) {
    for (int64_t i = 0; i < segment.row_count; ++i) {
      const int64_t position = segment.start + i;
      float* row = segment.pages[static_cast<size_t>(position / kPageTokens)] + (position % kPageTokens) * 2 * width;
      const int64_t t = segment.first_row + i;
      row = std::copy_n(ks + t * width, width, row);
      std::copy_n(vs + t * width, width, row);
    }
  }
}

}  // namespace weft::ops::reference
