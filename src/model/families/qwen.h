// The Qwen family: Qwen3-Next and the text towers of Qwen3.5. What sets it apart from its relatives:
//
//  1. Two attention kinds, told apart by `layer_types` or by an interval: gated DeltaNet (GDN), a delta rule with one decay a
//  value
//     head, whose value heads share the key heads in groups, and grouped-query softmax attention with an output gate.
//  2. The input projections of GDN are one matrix whose rows are grouped by key head (Qwen3-Next: in_proj_qkvz, in_proj_ba), or
//  one
//     each of contiguous rows (Qwen3.5). The rows stay where they are; what the product gives is split.
//  3. Half of the rows of q_proj, head by head, are the gate of the attention's output. q and k are normalised per head, then
//  the
//     first channels of a head are rotated (NeoX pairs); keys and values are kept in pages.
//  4. Norms are zero-centred, 1 + w, and rounded once; the gated norm of GDN has plain weights and SiLU of the gate.
//  5. The router is a softmax without bias; the shared expert is always on, scaled by a sigmoid gate of one number a token.
//
// Facts: Qwen3-Next spec 2, 3 and 11.
#pragma once

#include <memory>

#include "model/checkpoint.h"
#include "model/stage.h"
#include "model/stage_options.h"

namespace weft {

[[nodiscard]] std::unique_ptr<Stage> make_qwen_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options);

}  // namespace weft
