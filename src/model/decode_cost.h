// What one decoded token costs, from headers alone.
#pragma once

#include "base/units.h"
#include "model/checkpoint.h"

namespace weft {

// Weight bytes that the stage `range` reads for one token of one sequence: all it owns once, of routed experts
// experts_per_token of each layer, of the embedding table one row (K3 spec 4.3). Same errors as Checkpoint::require.
[[nodiscard]] ByteCount decode_bytes_per_token(const Checkpoint& checkpoint, LayerRange range);

}  // namespace weft
