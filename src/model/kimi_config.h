// The configuration of the Kimi family: K3 (`kimi_k3`) and Kimi Linear (`kimi_linear`). K3 spec 1 and 7.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "ops/ops.h"

namespace weft {

// Features are present or absent as the keys are, never by model name.
struct KimiConfig {
  std::string model_type;  // top-level: "kimi_k3" or "kimi_linear"
  bool nested = false;     // text_config and the prefix "language_model." (K3's published form)

  int64_t hidden_size = 0;    // D
  int64_t layer_count = 0;    // L
  int64_t vocab_size = 0;     // V
  float rms_norm_eps = 0.0F;  // of all norms but the MLA low-rank ones
  bool tie_word_embeddings = false;
  int64_t max_context = 0;       // tokens: max_position_embeddings (K3) or model_max_length (Kimi Linear)
  std::vector<int64_t> eos_ids;  // of config.json
  std::vector<bool> is_kda;      // [L], from the 1-based lists
  int64_t listed_layers = 0;     // largest entry of the lists; above L in a truncated copy (ruling R3)

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

  // MLP and MoE
  ops::Activation activation;
  int64_t intermediate_size = 0;       // F, dense layers
  int64_t experts = 0;                 // E; 0: all layers dense
  int64_t shared_experts = 0;          // Ns; the shared MLP is Ns * M wide
  int64_t moe_intermediate_size = 0;   // M
  std::optional<int64_t> latent_size;  // Z of the latent MoE; absent: experts act on D
  bool latent_norm = false;
  ops::RouterRule router;
  int64_t first_dense_layers = 0;
  int64_t moe_layer_freq = 1;

  std::optional<int64_t> residual_block;  // B of Attention Residuals; absent: plain residuals

  Json quantization;  // quantization_config of either level, checked against the other; null: absent

  std::vector<std::string> notes;  // visible notes of loading, e.g. ruling R3

  [[nodiscard]] int64_t kda_width() const { return kda_heads * kda_head_dim; }              // P
  [[nodiscard]] int64_t expert_width() const { return latent_size.value_or(hidden_size); }  // Z
  [[nodiscard]] bool is_moe(LayerIndex layer) const {
    return experts > 0 && layer.value >= first_dense_layers && layer.value % moe_layer_freq == 0;
  }
  // Frozen residual blocks that exist before layer l: ceil(l / B); 0 without Attention Residuals.
  [[nodiscard]] int64_t blocks_before(LayerIndex layer) const {
    return residual_block ? (layer.value + *residual_block - 1) / *residual_block : 0;
  }
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
[[nodiscard]] KimiConfig load_kimi_config(const std::filesystem::path& model_dir);

}  // namespace weft
