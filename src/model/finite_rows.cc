#include "model/finite_rows.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.h"

namespace weft {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;  // NaN above it

}  // namespace

void check_finite(const Batch& batch, std::string_view place, TensorView rows) {
  const std::span<const float> values = rows.as<float>();
  uint32_t largest = 0;  // an integer maximum goes on vector lanes
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  if (largest < kInfinity) return;

  const auto bad =
      std::ranges::find_if(values, [](float value) { return (std::bit_cast<uint32_t>(value) & kMagnitude) >= kInfinity; });
  const int64_t index = bad - values.begin();
  const int64_t row = index / rows.shape.last();
  const auto group = std::ranges::find_if(
      batch.groups, [&](const RowGroup& g) { return g.first_row <= row && row < g.first_row + g.row_count; });
  const int64_t position = group->start.value + row - group->first_row;
  fail(ErrorKind::bad_checkpoint, place, "position {}, element {}: wanted a finite value, found {}", position,
       index % rows.shape.last(), *bad);
}

}  // namespace weft
