// The configuration of the Qwen family: Qwen3-Next (`qwen3_next`) and the text towers of Qwen3.5 (`qwen3_5`, `qwen3_5_moe`,
// flat or in a wrapper). Qwen3-Next spec 1 and 11.1.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"
#include "ops/attention_parts.h"

namespace weft {

struct QwenConfig final : ModelConfig {
  std::vector<bool> is_full;  // [L]: gated softmax attention, else gated DeltaNet

  // Gated DeltaNet
  ops::DeltaShape delta;     // Nk, Nv, Dk, Dv
  int64_t conv_kernel = 0;   // Kc
  bool interleaved = false;  // in_proj_qkvz and in_proj_ba, rows grouped by key head; else in_proj_{qkv,z,b,a}
  ops::NormGate output_gate = ops::NormGate::silu;

  // Gated attention
  ops::GqaShape attention;  // Nq, Nkv, Dh
  int64_t rotary = 0;       // R, the channels of a head that are rotated
  double rope_theta = 0.0;

  int64_t shared_intermediate_size = 0;  // Is

  [[nodiscard]] int64_t key_width() const { return delta.key_heads * delta.key_size; }
  [[nodiscard]] int64_t value_width() const { return delta.value_heads * delta.value_size; }
  [[nodiscard]] int64_t query_width() const { return attention.heads * attention.size; }
  [[nodiscard]] int64_t kv_width() const { return attention.kv_heads * attention.size; }
  // Widths of the slabs that follow each other in a group of rows of the interleaved projections (spec 2.2), and of q_proj
  // (3.4): q, k, v, z of a key head; b, a of a key head; queries, gates of a head.
  [[nodiscard]] std::array<int64_t, 4> qkvz_slabs() const {
    const int64_t values = delta.value_heads / delta.key_heads * delta.value_size;
    return {delta.key_size, delta.key_size, values, values};
  }
  [[nodiscard]] std::array<int64_t, 2> ba_slabs() const {
    return {delta.value_heads / delta.key_heads, delta.value_heads / delta.key_heads};
  }
  [[nodiscard]] std::array<int64_t, 2> query_slabs() const { return {attention.size, attention.size}; }
  [[nodiscard]] bool full_at(LayerIndex layer) const { return is_full[static_cast<size_t>(layer.value)]; }

  [[nodiscard]] std::vector<ParamSpec> params() const override;
  [[nodiscard]] std::vector<JoinedTensor> joined_tensors() const override;
  [[nodiscard]] std::string canonical_name(std::string_view stored) const override;
  [[nodiscard]] bool is_vision(std::string_view name) const override;
  [[nodiscard]] bool is_mtp(std::string_view name) const override {
    return name.starts_with("mtp.") || name.starts_with("model.mtp.");
  }
  [[nodiscard]] bool zero_centred_norm(std::string_view role) const override { return role != "gdn.norm"; }
  [[nodiscard]] StateLayout state_layout(LayerRange layers) const override;
  [[nodiscard]] std::string_view mixer_name(LayerIndex layer) const override { return full_at(layer) ? "GQA" : "GDN"; }
  [[nodiscard]] int64_t mixer_elements(LayerIndex layer) const override;
  [[nodiscard]] int64_t mlp_elements(LayerIndex layer) const override;
  [[nodiscard]] int64_t widest_input() const override;
  [[nodiscard]] int64_t attention_scratch() const override { return attention.heads * ops::kGqaParts * (2 + attention.size); }
  [[nodiscard]] MixerOperations mixer_operations(LayerIndex layer) const override;
  [[nodiscard]] Json describe() const override;
  [[nodiscard]] std::string summary() const override;
};

// "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text".
[[nodiscard]] bool is_qwen_type(std::string_view model_type);

// Validates every rule of Qwen3-Next spec 1.1 and 11.1. Throws bad_checkpoint or unsupported naming the key and the value.
// rope_theta, partial_rotary_factor, head_dim, all linear_* sizes and all sizes of the MoE are required; sizes have no
// defaults.
//
// Absence has a meaning only for: layer_types (full_attention_interval then says which), rope_parameters (flat keys then),
// rope_scaling, layer_scale, use_sliding_window and quantization_config (none), tie_word_embeddings of the level that is not
// asked first, attention_bias (false), attn_output_gate (true), output_gate_type (silu), mlp_only_layers (empty),
// decoder_sparse_step (1), norm_topk_prob in Qwen3.5 (true), and bos, eos and pad ids (nothing stops on them).
[[nodiscard]] QwenConfig parse_qwen_config(const Json& config, std::string_view place);

}  // namespace weft
