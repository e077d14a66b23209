// How the CUDA operators of attention cut the positions of a row, whatever their number; plans count their scratch memory by
// it.
#pragma once

#include <cstdint>

namespace weft::ops {

// A call of at most so many rows works on each part in a block of its own and keeps its result; more rows add them up at once.
inline constexpr int64_t kRowsInParts = 16;
inline constexpr int64_t kMlaParts = 32;
inline constexpr int64_t kGqaParts = 64;  // few key/value heads: more parts fill a GPU

}  // namespace weft::ops
