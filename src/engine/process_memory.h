#pragma once

#include "base/json.h"
#include "base/units.h"
#include "model/stage.h"

namespace weft {

// The largest resident set of this process so far; mapped weights that were read count.
[[nodiscard]] ByteCount peak_memory();

// {"trunk_bytes", "expert_bytes", "state_bytes", "workspace_bytes", "peak_bytes": peak_memory()}
[[nodiscard]] Json memory_json(const MemoryUse& use);

}  // namespace weft
