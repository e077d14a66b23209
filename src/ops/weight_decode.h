// Exact widening of stored weights to float32, one row at a time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "ops/weight.h"

namespace weft::ops {

inline constexpr int64_t kMxGroup = 32;  // columns that share one E8M0 scale

// Values of the E2M1 codes; bit 3 is the sign (K3 spec 2.4).
inline constexpr std::array<float, 16> kE2m1 = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// 2^(code - 127): code 0 is the subnormal 2^-127; 255 is NaN, so that an unchecked bad scale cannot pass for a number.
[[nodiscard]] constexpr float e8m0_to_f32(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? std::bit_cast<float>(uint32_t{0x00400000}) : std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// out[0, weight.in) = row `row` of the weight. Exact; an MXFP4 product above the range of float32 (scale codes 253 and 254
// with large values) is infinite.
void decode_row(const WeightView& weight, int64_t row, float* out);

}  // namespace weft::ops
