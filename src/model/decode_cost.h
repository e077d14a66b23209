// What tokens cost, from headers alone.
#pragma once

#include "base/units.h"
#include "model/checkpoint.h"

namespace weft {

// Weight bytes that the stage `range` reads for one token of one sequence: all it owns once, of routed experts
// experts_per_token of each layer, of the embedding table one row (K3 spec 4.3). Same errors as Checkpoint::require.
[[nodiscard]] ByteCount decode_bytes_per_token(const Checkpoint& checkpoint, LayerRange range);

// Weight bytes of one routed expert of a layer; 0 for a layer without.
[[nodiscard]] ByteCount routed_expert_bytes(const Checkpoint& checkpoint, LayerIndex layer);

// Floating-point operations, a multiply-add as two, of the whole model over the first `tokens` of a sequence with logits of the
// last one (K3 spec 4.3): of each token 2 per weight that it uses (routed experts: experts_per_token of each layer; no
// embedding table) and 7 d^2 per KDA head; 2 (2 rc + dr) per MLA head and pair of a token and one at or before it; the head
// once. What is not in products (norms, convolutions, activations, mixes) is left out.
[[nodiscard]] double prefill_operations(const Checkpoint& checkpoint, TokenCount tokens);

// The same for one token more behind `before`, with its logits.
[[nodiscard]] double decode_operations(const Checkpoint& checkpoint, TokenCount before);

}  // namespace weft
