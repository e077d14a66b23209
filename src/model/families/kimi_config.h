// The configuration of the Kimi family: K3 (`kimi_k3`) and Kimi Linear (`kimi_linear`). K3 spec 1 and 7.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"
#include "ops/attention_parts.h"

namespace weft {

// Features are present or absent as the keys are, never by model name.
struct KimiConfig final : ModelConfig {
  std::vector<bool> is_kda;  // [L], from the 1-based lists

  // KDA
  int64_t kda_heads = 0;                  // Hk
  int64_t kda_head_dim = 0;               // d
  int64_t conv_kernel = 0;                // Kc
  std::optional<float> gate_lower_bound;  // absent: softplus decay
  bool full_rank_gate = false;            // g_proj, else g_a_proj and g_b_proj

  // MLA
  ops::MlaShape mla;
  std::optional<int64_t> q_lora_rank;  // absent: plain q_proj
  bool mla_output_gate = false;

  // MoE
  int64_t shared_experts = 0;          // Ns; the shared MLP is Ns * M wide
  std::optional<int64_t> latent_size;  // Z of the latent MoE; absent: experts act on D
  bool latent_norm = false;

  [[nodiscard]] int64_t kda_width() const { return kda_heads * kda_head_dim; }  // P
  [[nodiscard]] bool kda_at(LayerIndex layer) const { return is_kda[static_cast<size_t>(layer.value)]; }

  [[nodiscard]] std::vector<ParamSpec> params() const override;
  [[nodiscard]] std::vector<ParamSpec> mlx_params(const std::function<bool(std::string_view name)>& stores) const override;
  [[nodiscard]] std::vector<JoinedTensor> joined_tensors() const override;
  [[nodiscard]] std::string canonical_name(std::string_view stored) const override;
  [[nodiscard]] std::string name_prefix() const override { return nested ? "language_model." : ""; }
  [[nodiscard]] bool is_vision(std::string_view name) const override;
  [[nodiscard]] bool is_mtp(std::string_view name) const override;
  [[nodiscard]] StateLayout state_layout(LayerRange layers) const override;
  [[nodiscard]] std::string_view mixer_name(LayerIndex layer) const override { return kda_at(layer) ? "KDA" : "MLA"; }
  [[nodiscard]] int64_t expert_width() const override { return latent_size.value_or(hidden_size); }
  [[nodiscard]] int64_t mixer_elements(LayerIndex layer) const override;
  [[nodiscard]] int64_t mlp_elements(LayerIndex layer) const override;
  [[nodiscard]] int64_t widest_input() const override;
  [[nodiscard]] int64_t attention_scratch() const override { return mla.heads * ops::kMlaParts * (2 + mla.latent); }
  [[nodiscard]] MixerOperations mixer_operations(LayerIndex layer) const override;
  [[nodiscard]] Json describe() const override;
  [[nodiscard]] std::string summary() const override;
};

// Validates every rule of K3 spec 1.5 and rulings R3, R13. Throws bad_checkpoint or unsupported naming the key and the value; a
// missing required key is an error. `place` names the file in messages.
//
// Absence has a meaning only for: activation_situ_beta (1.0, with a note), activation_situ_linear_beta (no bound on the up
// branch), quantization_config (nothing is packed), tie_word_embeddings and eos_token_id of the level that is not asked first,
// topk_method, attention_bias, and in Kimi Linear alone gate_lower_bound (softplus decay), use_full_rank_gate and
// mla_use_output_gate (false), q_lora_rank (plain q_proj), routed_expert_hidden_size (no latent) and attn_res_block_size (plain
// residuals). K3 (nested, or flat with attn_res_block_size) must state these; null or false says "off".
[[nodiscard]] KimiConfig parse_kimi_config(const Json& config, std::string_view place);

}  // namespace weft
