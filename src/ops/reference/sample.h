// One row of ops::sample.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample.h"

namespace weft::ops::reference {

// `index` names the row in errors.
[[nodiscard]] Sampled sample_row(int64_t index, std::span<const float> logits, const SampleRow& row);

}  // namespace weft::ops::reference
