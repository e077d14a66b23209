// All products of E2M1 codes with E8M0 scales, as bf16 bits: decoding an MXFP4 group is a table lookup, its scale included.
//
// A product has at most two significant bits, so bf16 holds it exactly, subnormals included. 2^128 and above is infinite, and
// every product with scale 255 is NaN (weight_decode.h).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace weft::ops::cpu {

[[nodiscard]] constexpr uint16_t scaled_e2m1(unsigned scale, unsigned code) {
  const unsigned sign = (code & 8U) << 12U;
  const unsigned magnitude = code & 7U;
  if (scale == 255) return static_cast<uint16_t>(sign | 0x7FC0U);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const unsigned significand = magnitude > 1 && magnitude % 2 == 1 ? 0xC0U : 0x80U;  // 1.5 or 1, in units of 2^-7
  const int exponent = static_cast<int>(scale + magnitude / 2) - 1;                  // biased
  if (exponent >= 255) return static_cast<uint16_t>(sign | 0x7F80U);
  if (exponent < 1) return static_cast<uint16_t>(sign | significand >> static_cast<unsigned>(1 - exponent));
  return static_cast<uint16_t>(sign | static_cast<unsigned>(exponent) << 7U | (significand & 0x7FU));
}

// For lookups of bytes: the low bytes of the 16 products with one scale, then the high bytes. 8 KiB.
struct alignas(32) E2m1Bytes {
  std::array<uint8_t, 16> low{};
  std::array<uint8_t, 16> high{};
};
[[nodiscard]] constexpr std::array<E2m1Bytes, 256> make_e2m1_bytes() {
  std::array<E2m1Bytes, 256> tables{};
  for (unsigned scale = 0; scale < 256; ++scale) {
    for (unsigned code = 0; code < 16; ++code) {
      tables[scale].low[code] = static_cast<uint8_t>(scaled_e2m1(scale, code));
      tables[scale].high[code] = static_cast<uint8_t>(scaled_e2m1(scale, code) >> 8U);
    }
  }
  return tables;
}
inline constexpr std::array<E2m1Bytes, 256> kE2m1Bytes = make_e2m1_bytes();

// For lookups of 16-bit lanes with 5-bit indices, of which the highest is another code's bit: the products twice. 16 KiB.
struct alignas(64) E2m1Words {
  std::array<uint16_t, 32> words{};
};
[[nodiscard]] constexpr std::array<E2m1Words, 256> make_e2m1_words() {
  std::array<E2m1Words, 256> tables{};
  for (unsigned scale = 0; scale < 256; ++scale) {
    for (unsigned i = 0; i < 32; ++i) tables[scale].words[i] = scaled_e2m1(scale, i % 16);
  }
  return tables;
}
inline constexpr std::array<E2m1Words, 256> kE2m1Words = make_e2m1_words();

// For lookups of 32-bit lanes with 4-bit indices: the products as float32. 16 KiB.
struct alignas(64) E2m1Floats {
  std::array<float, 16> values{};
};
[[nodiscard]] constexpr std::array<E2m1Floats, 256> make_e2m1_floats() {
  std::array<E2m1Floats, 256> tables{};
  for (unsigned scale = 0; scale < 256; ++scale) {
    for (unsigned code = 0; code < 16; ++code) {
      tables[scale].values[code] = std::bit_cast<float>(static_cast<uint32_t>(scaled_e2m1(scale, code)) << 16U);
    }
  }
  return tables;
}
inline constexpr std::array<E2m1Floats, 256> kE2m1Floats = make_e2m1_floats();

// The order of a unit's 32 columns in the 16-bit lanes of a 512-bit vector: lane 8 k + w is column 4 w + k. It is what shifting
// the quarters of a repeated 16-byte group by 0, 4, 8 and 12 bits gives.
[[nodiscard]] constexpr std::array<uint16_t, 32> make_order512() {
  std::array<uint16_t, 32> order{};
  for (unsigned lane = 0; lane < 32; ++lane) order[lane] = static_cast<uint16_t>(4 * (lane % 8) + lane / 8);
  return order;
}
alignas(64) inline constexpr std::array<uint16_t, 32> kOrder512 = make_order512();
alignas(64) inline constexpr std::array<uint32_t, 16> kShifts512 = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};

}  // namespace weft::ops::cpu
