#include <algorithm>

#include "ops/reference/reference.h"

namespace weft::ops::reference {

void mla_append(Context& /*context*/, const MlaShape& shape, TensorView c, TensorView k_r,
                std::span<const PagedSegment> segments) {
  const float* latents = c.as<float>().data();
  const float* ropes = k_r.as<float>().data();
  for (const PagedSegment& segment : segments) {
    for (int64_t i = 0; i < segment.row_count; ++i) {
      const int64_t position = segment.start + i;
      float* page = segment.pages[static_cast<size_t>(position / kPageTokens)];
      float* row = page + (position % kPageTokens) * (shape.latent + shape.rope);
      const int64_t t = segment.first_row + i;
      row = std::copy_n(latents + t * shape.latent, shape.latent, row);
      std::copy_n(ropes + t * shape.rope, shape.rope, row);
    }
  }
}

}  // namespace weft::ops::reference
