// Exact widening of stored weights to float32, one row at a time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/weight.h"
#include "tensor/bf16.h"

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

// E4M3 without infinities: bias 7, subnormals in units of 2^-9, 0x7f and 0xff are NaN (MX spec 1.1).
[[nodiscard]] constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = (code & 0x80U) << 24U;
  const uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude < 8) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9F) | sign);
  return std::bit_cast<float>(sign | ((magnitude << 20U) + (120U << 23U)));
}

[[nodiscard]] constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16U;
  const uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13U);
  if (magnitude < 0x400U) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24F) | sign);
  return std::bit_cast<float>(sign | ((magnitude << 13U) + (112U << 23U)));
}

// Element `index` of scales or biases; files align them to bytes only.
[[nodiscard]] inline float scale_at(ScaleType type, const std::byte* scales, int64_t index) {
  if (type == ScaleType::f32) {
    float value = 0.0F;
    std::memcpy(&value, scales + 4 * index, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, scales + 2 * index, 2);
  return type == ScaleType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// Code `column` of a row of `bits` bits a code.
[[nodiscard]] inline unsigned affine_code(const std::byte* row, int64_t column, unsigned bits) {
  const int64_t first = column * bits;
  const auto* bytes = reinterpret_cast<const uint8_t*>(row) + first / 8;
  const auto shift = static_cast<unsigned>(first % 8);
  unsigned word = bytes[0];
  if (shift + bits > 8) word |= static_cast<unsigned>(bytes[1]) << 8U;
  return word >> shift & ((1U << bits) - 1U);
}

// out[0, weight.in) = row `row` of the weight, as weight.h defines its values. An MXFP4 product above the range of float32
// (scale codes 253 and 254 with large values) is infinite.
void decode_row(const WeightView& weight, int64_t row, float* out);

}  // namespace weft::ops
