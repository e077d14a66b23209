#pragma once

#include "ops/first_not_finite.h"

namespace weft::ops::reference {

// Also the CPU's.
void first_not_finite(Context& context, TensorView x, int64_t place, std::span<uint64_t> first);

}  // namespace weft::ops::reference
