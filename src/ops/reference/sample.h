// One row of ops::sample.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample.h"

namespace weft::ops::reference {

// weights[i] = e^((logits[i] - max) / temperature).
using Weigh = void(std::span<const float> logits, double max, double temperature, std::span<double> weights);
Weigh weigh;

// log sum exp of the row, in ascending order of ids.
[[nodiscard]] double log_sum_exp(std::span<const float> logits, Weigh* weigh);

// The row with the back end's exponentials; `index` names it in errors.
[[nodiscard]] Sampled sample_row(int64_t index, std::span<const float> logits, const SampleRow& row, Weigh* weigh);

}  // namespace weft::ops::reference
