#include "ops/rotary_table.h"

#include <cmath>

#include "base/error.h"

namespace weft::ops {

void rotary_table(std::span<const int64_t> positions, std::span<const float> inverse_frequencies, float scale,
                  std::span<float> table) {
  const size_t half = inverse_frequencies.size();
  if (table.size() != positions.size() * 2 * half) {
    fail(ErrorKind::internal, "rotary_table", "table: wanted {} values, found {}", positions.size() * 2 * half, table.size());
  }
  float* row = table.data();
  for (const int64_t position : positions) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * inverse_frequencies[i];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * static_cast<double>(scale));
      row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)) * static_cast<double>(scale));
    }
    row += 2 * half;
  }
}

}  // namespace weft::ops
