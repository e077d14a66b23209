// Faults of the computation that tests/faults/ switches on to see that the gate (docs/compare.md) notices them. Sources that
// name one are compiled a second time, for that test alone, with WEFT_FAULTS; in every other build on() is the constant false
// and what it guards is gone.
#pragma once

#include <cstdint>

namespace weft {

// Rows of the table of K3 spec 8.4. Those that are not here are another reading of the checkpoint (nibble order, layer lists,
// ...), which a test makes from a changed checkpoint.
enum class Fault : uint8_t {
  none,
  a_log_per_channel,
  dt_bias_after_exp,
  delta_from_undecayed_state,
  output_before_update,
  no_silu_after_convolution,
  gate_before_o_norm,
  silu_output_gate,
  mla_scale_from_nope,
  k_rope_dropped,
  weights_from_biased_scores,
  router_bias_ignored,
  mix_of_normalised_vectors,
  block_before_attention_mix,
  sum_not_restarted,
  mlp_mix_skipped,
  output_mix_skipped,
  mla_norm_epsilon,
  l2norm_epsilon_on_mean,
};

#ifdef WEFT_FAULTS
[[nodiscard]] bool on(Fault fault);  // defined by the test
#else
[[nodiscard]] constexpr bool on(Fault /*fault*/) { return false; }
#endif

}  // namespace weft
