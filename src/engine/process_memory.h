#pragma once

#include "base/units.h"

namespace weft {

// The largest resident set of this process so far; mapped weights that were read count.
[[nodiscard]] ByteCount peak_memory();

// Of the machine.
[[nodiscard]] ByteCount physical_memory();

}  // namespace weft
