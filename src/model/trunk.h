// The trunk: all weights of a stage that every token reads. The rest, routed experts and the rows of the embedding table, is
// brought in when a token needs it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/units.h"
#include "model/checkpoint.h"

namespace weft {

// What is stored of the trunk of the stage `range`: neither routed experts nor, unless it is the head too, the embedding table.
// Same errors as Checkpoint::require.
[[nodiscard]] std::vector<StoredPart> trunk_parts(const Checkpoint& checkpoint, LayerRange range);
[[nodiscard]] ByteCount trunk_bytes(const Checkpoint& checkpoint, LayerRange range);

// Brings the trunk into memory at the speed of the disk. `on_progress`, if given, is told the bytes done so far, of
// trunk_bytes() at the end, from one thread at a time; what it throws ends the reading.
void read_trunk(const Checkpoint& checkpoint, LayerRange range, const std::function<void(int64_t done)>& on_progress = {});

}  // namespace weft
