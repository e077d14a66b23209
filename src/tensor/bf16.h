// bfloat16 <-> float32. Widening is exact; narrowing rounds to nearest, ties to even, and keeps NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

[[nodiscard]] constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

[[nodiscard]] constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace weft
