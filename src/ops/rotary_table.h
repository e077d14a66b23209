// The table of `rotate`, made on the host.
#pragma once

#include <cstdint>
#include <span>

namespace weft::ops {

// For each position, the cosines of the angles position * inverse_frequencies[i], then their sines, times `scale` (YaRN's
// attention factor; 1 without).  table [positions, 2 * frequencies]. An angle is a float32 product, as other engines compute it
// (Qwen3-Next spec 3.5); its cosine and sine are computed in float64 and rounded once, so that they are the same on every
// machine.
void rotary_table(std::span<const int64_t> positions, std::span<const float> inverse_frequencies, float scale,
                  std::span<float> table);

}  // namespace weft::ops
