#pragma once

#include <string>

#include "base/json.h"
#include "base/units.h"
#include "model/stage.h"

namespace weft {

// The largest resident set of this process so far; mapped weights that were read count.
[[nodiscard]] ByteCount peak_memory();

// {"trunk_bytes", "expert_bytes", "state_bytes", "workspace_bytes", "peak_bytes": peak_memory()}, and on a GPU
// "gpu": {"planned", "used": {"weight_bytes", "state_bytes", "workspace_bytes"}}
[[nodiscard]] Json memory_json(const MemoryUse& use);

// The same of a GPU in words; empty without one.
[[nodiscard]] std::string gpu_memory_text(const MemoryUse& use);

}  // namespace weft
