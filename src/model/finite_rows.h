#pragma once

#include <string_view>

#include "model/batch.h"
#include "tensor/tensor.h"

namespace weft {

// Throws bad_checkpoint when a value of rows [T, D] is not finite: the weights hold it, or one of theirs overflowed, or a saved
// state did. Names `place` and the position in its sequence.
void check_finite(const Batch& batch, std::string_view place, TensorView rows);

}  // namespace weft
