#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/executor.h"

namespace weft {

// The logits [V] of the token after `ids` (at least one), from an empty sequence, in steps of at most `chunk` rows.
[[nodiscard]] std::vector<float> next_logits(Executor& executor, std::span<const int32_t> ids, int64_t chunk);

}  // namespace weft
