// Where the codes of a unit of 32 columns lie in the 4 * bits bytes that hold them, for vector code that takes them in the
// column orders of the dense kernels (dense.cc).
#pragma once

#include <array>
#include <cstdint>

namespace weft::ops::cpu {

// Column of 32-bit lane `lane` of vector `vector` of a unit.
[[nodiscard]] constexpr unsigned column512(unsigned vector, unsigned lane) { return 8 * (lane % 4) + 4 * vector + lane / 4; }
[[nodiscard]] constexpr unsigned column256(unsigned vector, unsigned lane) {
  return 16 * (vector / 2) + 4 * (lane % 4) + 2 * (vector % 2) + lane / 4;
}

// AVX-512: a lookup of 16-bit words puts the two words that a code touches into its lane, a shift brings it to the lowest bits.
struct alignas(64) AffineWords {
  std::array<std::array<uint16_t, 32>, 2> words{};
  std::array<std::array<uint32_t, 16>, 2> shifts{};
  std::array<float, 32> codes{};  // what index i means when only its lowest `bits` bits are the code
};
[[nodiscard]] constexpr AffineWords make_affine_words(unsigned bits) {
  AffineWords table;
  for (unsigned v = 0; v < 2; ++v) {
    for (unsigned lane = 0; lane < 16; ++lane) {
      const unsigned bit = column512(v, lane) * bits;
      table.words[v][size_t{2} * lane] = static_cast<uint16_t>(bit / 16);
      table.words[v][size_t{2} * lane + 1] = static_cast<uint16_t>(bit / 16 + 1);
      table.shifts[v][lane] = bit % 16;
    }
  }
  for (unsigned i = 0; i < 32; ++i) table.codes[i] = static_cast<float>(i & ((1U << bits) - 1));
  return table;
}
inline constexpr std::array<AffineWords, 9> kAffineWords = {AffineWords(),        AffineWords(),        make_affine_words(2),
                                                            make_affine_words(3), make_affine_words(4), make_affine_words(5),
                                                            make_affine_words(6), AffineWords(),        make_affine_words(8)};

// AVX-512, 4 bits: of the 16 bytes in every quarter of a vector, what brings the codes of the first vector to the lowest bits;
// the second vector's follow 16 bits above.
alignas(64) inline constexpr std::array<uint32_t, 16> kNibbleShifts512 = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};

// AVX2: of each half of a unit, 16 bytes from 32-bit word `window` on stand in both halves of a vector; a lookup of bytes puts
// the two bytes that a code touches into its lane. 0x80 gives zero.
struct alignas(32) AffineBytes {
  std::array<std::array<uint8_t, 32>, 4> bytes{};
  std::array<std::array<uint32_t, 8>, 4> shifts{};
  std::array<std::array<uint32_t, 8>, 2> windows{};
  std::array<uint32_t, 8> loads{};  // the words of a unit: all ones
};
[[nodiscard]] constexpr AffineBytes make_affine_bytes(unsigned bits) {
  AffineBytes table;
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned window = 2 * bits * half / 4;
    for (unsigned lane = 0; lane < 8; ++lane) table.windows[half][lane] = (window + lane % 4) % 8;
    for (unsigned v = 2 * half; v < 2 * half + 2; ++v) {
      for (unsigned lane = 0; lane < 8; ++lane) {
        const unsigned bit = column256(v, lane) * bits - 32 * window;
        for (unsigned i = 0; i < 4; ++i) table.bytes[v][size_t{4} * lane + i] = 0x80;
        table.bytes[v][size_t{4} * lane] = static_cast<uint8_t>(bit / 8);
        if (bit % 8 + bits > 8) table.bytes[v][size_t{4} * lane + 1] = static_cast<uint8_t>(bit / 8 + 1);
        table.shifts[v][lane] = bit % 8;
      }
    }
  }
  for (unsigned i = 0; i < bits; ++i) table.loads[i] = ~0U;
  return table;
}
inline constexpr std::array<AffineBytes, 9> kAffineBytes = {AffineBytes(),        AffineBytes(),        make_affine_bytes(2),
                                                            make_affine_bytes(3), make_affine_bytes(4), make_affine_bytes(5),
                                                            make_affine_bytes(6), AffineBytes(),        make_affine_bytes(8)};

// The orders of FP8: of the 16-bit lanes of a 512-bit vector, and of the bytes of half a unit.
[[nodiscard]] constexpr std::array<uint16_t, 32> make_fp8_order512() {
  std::array<uint16_t, 32> order{};
  for (unsigned lane = 0; lane < 32; ++lane) order[lane] = static_cast<uint16_t>(column512(lane / 16, lane % 16));
  return order;
}
alignas(64) inline constexpr std::array<uint16_t, 32> kFp8Order512 = make_fp8_order512();
[[nodiscard]] constexpr std::array<uint8_t, 16> make_fp8_order256() {
  std::array<uint8_t, 16> order{};
  for (unsigned lane = 0; lane < 16; ++lane) order[lane] = static_cast<uint8_t>(column256(lane / 8, lane % 8));
  return order;
}
alignas(16) inline constexpr std::array<uint8_t, 16> kFp8Order256 = make_fp8_order256();

// Where ascending columns lie in the two vectors of a 512-bit unit.
[[nodiscard]] constexpr std::array<std::array<uint32_t, 16>, 2> make_ascending512() {
  std::array<std::array<uint32_t, 16>, 2> places{};
  for (unsigned v = 0; v < 2; ++v) {
    for (unsigned lane = 0; lane < 16; ++lane) {
      const unsigned column = column512(v, lane);
      places[column / 16][column % 16] = 16 * v + lane;
    }
  }
  return places;
}
alignas(64) inline constexpr std::array<std::array<uint32_t, 16>, 2> kAscending512 = make_ascending512();

}  // namespace weft::ops::cpu
