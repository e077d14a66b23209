// Sums in a fixed order that compilers can put on vector lanes.
#pragma once

#include <array>
#include <cstdint>

namespace weft::ops {

// The sum of 16 partial sums: halves are added until one is left.
[[nodiscard]] inline float fold16(const float* lanes) {
  std::array<float, 8> s{};
  for (size_t i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (size_t i = 0; i < 4; ++i) s[i] = s[i] + s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// sum_i a[i] b[i] in 16 partial sums (element i belongs to sum i mod 16), then fold16. The order depends on n alone; 16 sums
// also lose less than one.
[[nodiscard]] inline float lane_dot(const float* a, const float* b, int64_t n) {
  std::array<float, 16> lanes{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t j = 0; j < 16; ++j) lanes[j] += a[i + static_cast<int64_t>(j)] * b[i + static_cast<int64_t>(j)];
  }
  for (size_t j = 0; i < n; ++i, ++j) lanes[j] += a[i] * b[i];
  return fold16(lanes.data());
}

}  // namespace weft::ops
