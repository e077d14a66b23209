// Intermediate values of a forward pass, for `weft trace`, `weft check` and the tests.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "tensor/tensor.h"

namespace weft {

// Names follow the goldens: attn_in is the input of input_layernorm (after the mix), mlp_in that of post_attention_layernorm.
enum class TracePoint : uint8_t {
  embed,           // [T, D], layer 0
  attn_in,         // [T, D]
  attn_out,        // [T, D]
  after_attn,      // [T, D]
  mlp_in,          // [T, D]
  mlp_out,         // [T, D]
  out,             // [T, D] what the layer hands to the next
  experts,         // [T, k] i32, the router's own choice, ascending in a row
  expert_weights,  // [T, k] their combining weights
  router_margin,   // [T] last chosen selection score minus the best not chosen
  mixed,           // [R, D] rows that want logits only, after the output mix; layer L - 1
  final_norm,      // [R, D] likewise
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Called from the stage's thread; stages of one process call at the same time. `rows` (float32 unless said above) is valid
  // during the call.
  virtual void record(TracePoint point, LayerIndex layer, TensorView rows) = 0;
};

}  // namespace weft
