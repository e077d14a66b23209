// Per-head vectors that a checkpoint may store padded with zeros (K3 spec 2.5).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace weft {

// The first `heads` values, in f32, of `stored` [heads], [n] with n > heads, or [1, 1, heads, 1], dtype F32 or BF16.
//
// Every value behind the prefix must compare equal to zero (-0 does, NaN does not): a tensor that is genuinely longer must not
// be cut. Throws bad_checkpoint naming `name`, its length and the head count.
[[nodiscard]] std::vector<float> logical_prefix(const TensorView& stored, int64_t heads, std::string_view name);

}  // namespace weft
