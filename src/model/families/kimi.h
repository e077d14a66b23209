// The Kimi family: K3 and Kimi Linear. What sets it apart from its relatives:
//
//  1. Two attention kinds, told apart by two 1-based lists: KDA (a delta rule with a decay per channel) and MLA.
//  2. MLA is NoPE: the "rope" channels are ordinary content; scores are scaled by (dn + dr)^-1/2. Its low-rank norms use
//  epsilon
//     1e-6 whatever rms_norm_eps says. The absorbed form is the only one (its expanded twin lives in the tests).
//  3. KDA gates: log-decay bounded by lb * sigmoid(...) (K3) or -exp(A) softplus(...) (Kimi Linear); the output gate is full
//  rank
//     (g_proj) or low rank (g_b g_a).
//  4. `self_attn.g_proj` exists in both attention kinds with another role in each.
//  5. MoE on a latent (K3): down projection, experts, one norm over the sum of experts, up projection; the shared MLP reads the
//     full width. Router scores are sigmoids with a selection bias. Kimi Linear has no latent.
//  6. SiTU (K3) or SwiGLU (Kimi Linear) in dense, shared and routed MLPs alike.
//  7. Attention Residuals (K3): before each half of a layer the frozen blocks and the running sum are mixed; every B layers the
//     running sum is frozen as a block, after the mix of that layer's attention, and restarted.
//
// Features are detected by keys (KimiConfig), so one class serves both. Facts: K3 spec 3 and 7.
#pragma once

#include <memory>

#include "model/checkpoint.h"
#include "model/stage.h"
#include "model/stage_options.h"

namespace weft {

[[nodiscard]] std::unique_ptr<Stage> make_kimi_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options);

}  // namespace weft
