#include "ops/reference/first_not_finite.h"

#include <algorithm>
#include <bit>

namespace weft::ops::reference {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;  // NaN above it

uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & kMagnitude; }

}  // namespace

void first_not_finite(Context& /*context*/, TensorView x, int64_t place, std::span<uint64_t> first) {
  const std::span<const float> values = x.as<float>();
  uint32_t largest = 0;  // an integer maximum goes on vector lanes
  for (const float value : values) largest = std::max(largest, magnitude(value));
  if (largest < kInfinityBits) return;

  const auto bad = std::ranges::find_if(values, [](float value) { return magnitude(value) >= kInfinityBits; });
  const uint64_t kind = magnitude(*bad) > kInfinityBits ? kIsNan : *bad > 0.0F ? kIsInfinity : kIsMinusInfinity;
  const auto element = static_cast<uint64_t>(bad - values.begin());
  first[0] = std::min(first[0], static_cast<uint64_t>(place) << kPlaceShift | element << kElementShift | kind);
}

}  // namespace weft::ops::reference
