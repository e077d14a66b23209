// The five-layer golden model of K3 spec 8.4: a complete published-layout checkpoint whose weights come from a generator that
// the specification states. Written for tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/safetensors.h"
#include "tensor/bf16.h"

namespace weft::golden {

inline constexpr int64_t kVocab = 64;
inline constexpr int64_t kHidden = 32;
inline constexpr int64_t kLayers = 5;
inline constexpr int64_t kExperts = 8;
inline const std::vector<int32_t> kPrompt = {3, 14, 15, 9, 26, 53};
inline const std::vector<int32_t> kGreedy = {20, 22, 24, 55};

inline uint64_t seed_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}
inline uint64_t draw(uint64_t seed, int64_t index) {
  uint64_t z = seed + (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}
inline float r8(uint64_t x) { return static_cast<float>(x >> 56) / 128.0F - 1.0F; }
inline float r4(uint64_t x) { return static_cast<float>(x >> 60) / 8.0F - 1.0F; }

// The value of element `index` of a float tensor of the model; x: draw(seed_of(name), index).
inline float value_of(std::string_view name, int64_t index, uint64_t x) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (name.ends_with("norm.weight")) return 1.0F + r4(x) / 4.0F;
  if (has("embed_tokens")) return r8(x);
  if (has("_res_proj") || has("_conv1d")) return r8(x) * 0.5F;
  if (name.ends_with("A_log")) return index < 2 ? r8(x) : 0.0F;
  if (name.ends_with("dt_bias")) return r8(x);
  if (has("e_score_correction_bias") || has("shared_experts.")) return r8(x) * 0.125F;
  return r8(x) * 0.25F;
}

inline Json config() {
  return Json::parse(R"({
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 63, "tie_word_embeddings": false,
    "text_config": {
      "model_type": "kimi_linear", "hidden_size": 32, "num_hidden_layers": 5, "vocab_size": 64,
      "max_position_embeddings": 4096, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8,
      "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "mla_use_nope": true,
      "mla_use_output_gate": true, "intermediate_size": 48, "hidden_act": "situ", "activation_situ_beta": 4.0,
      "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-05, "attn_res_block_size": 2, "num_experts": 8,
      "num_experts_per_token": 2, "num_shared_experts": 2, "moe_intermediate_size": 64, "routed_expert_hidden_size": 32,
      "latent_moe_use_norm": true, "moe_router_activation_func": "sigmoid", "moe_renormalize": true,
      "routed_scaling_factor": 1.0, "topk_method": "noaux_tc", "use_grouped_topk": true, "num_expert_group": 1,
      "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
      "tie_word_embeddings": false, "eos_token_id": 2,
      "linear_attn_config": {"num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        "use_full_rank_gate": true, "kda_layers": [1, 2, 4], "full_attn_layers": [3, 5]},
      "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "targets": ["Linear"], "input_activations": null,
          "output_activations": null, "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
          "symmetric": true, "dynamic": false, "scale_dtype": "torch.uint8", "actorder": null, "block_structure": null,
          "zp_dtype": null}}},
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"]}
    }})");
}

inline const std::vector<int> kMlaLayers = {2, 4};

// All 320 tensors with their full names, written out from the tables of K3 spec 2.2 and 2.3 (not from Weft's parameter table).
inline std::vector<TensorSpec> tensors(const std::vector<int>& mla_layers = kMlaLayers) {
  std::vector<TensorSpec> out;
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape) {
    out.push_back({"language_model." + name, dtype, shape});
  };
  constexpr DType kB = DType::bf16;
  constexpr DType kF = DType::f32;
  add("model.embed_tokens.weight", kB, {64, 32});
  add("model.norm.weight", kB, {32});
  add("model.output_attn_res_norm.weight", kB, {32});
  add("model.output_attn_res_proj.weight", kB, {1, 32});
  add("lm_head.weight", kB, {64, 32});
  for (int l = 0; l < kLayers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"})
      add(layer + norm + ".weight", kB, {32});
    for (const char* proj : {"self_attention_res_proj", "mlp_res_proj"}) add(layer + proj + ".weight", kB, {1, 32});
    const std::string attn = layer + "self_attn.";
    if (std::ranges::find(mla_layers, l) != mla_layers.end()) {
      add(attn + "q_a_proj.weight", kB, {8, 32});
      add(attn + "q_a_layernorm.weight", kB, {8});
      add(attn + "q_b_proj.weight", kB, {24, 8});
      add(attn + "kv_a_proj_with_mqa.weight", kB, {12, 32});
      add(attn + "kv_a_layernorm.weight", kB, {8});
      add(attn + "kv_b_proj.weight", kB, {32, 8});
      add(attn + "g_proj.weight", kB, {16, 32});
      add(attn + "o_proj.weight", kB, {32, 16});
    } else {
      for (const char* proj : {"q_proj", "k_proj", "v_proj", "g_proj", "o_proj"}) add(attn + proj + ".weight", kB, {32, 32});
      add(attn + "f_a_proj.weight", kB, {16, 32});
      add(attn + "f_b_proj.weight", kB, {32, 16});
      add(attn + "b_proj.weight", kB, {2, 32});
      for (const char* conv : {"q_conv1d", "k_conv1d", "v_conv1d"}) add(attn + conv + ".weight", kF, {32, 1, 4});
      add(attn + "A_log", kF, {16});
      add(attn + "dt_bias", kF, {32});
      add(attn + "o_norm.weight", kF, {16});
    }
    if (l == 0) {
      add(layer + "mlp.gate_proj.weight", kB, {48, 32});
      add(layer + "mlp.up_proj.weight", kB, {48, 32});
      add(layer + "mlp.down_proj.weight", kB, {32, 48});
      continue;
    }
    const std::string moe = layer + "block_sparse_moe.";
    add(moe + "gate.weight", kB, {8, 32});
    add(moe + "gate.e_score_correction_bias", kF, {8});
    add(moe + "routed_expert_down_proj.weight", kB, {32, 32});
    add(moe + "routed_expert_norm.weight", kB, {32});
    add(moe + "routed_expert_up_proj.weight", kB, {32, 32});
    add(moe + "shared_experts.gate_proj.weight", kB, {128, 32});
    add(moe + "shared_experts.up_proj.weight", kB, {128, 32});
    add(moe + "shared_experts.down_proj.weight", kB, {32, 128});
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", moe, e);
      for (const char* up : {"w1", "w3"}) {
        add(expert + up + ".weight_packed", DType::u8, {64, 16});
        add(expert + up + ".weight_scale", DType::u8, {64, 1});
      }
      add(expert + "w2.weight_packed", DType::u8, {32, 32});
      add(expert + "w2.weight_scale", DType::u8, {32, 2});
    }
  }
  return out;
}

// The stored bytes of a tensor of tensors().
inline std::vector<std::byte> bytes_of(const TensorSpec& spec) {
  std::vector<std::byte> out(static_cast<size_t>(spec.shape.elements() * size_of(spec.dtype)));
  const uint64_t seed = seed_of(spec.name);
  for (int64_t i = 0; i < spec.shape.elements(); ++i) {
    std::byte* const at = out.data() + i * size_of(spec.dtype);
    const uint64_t x = draw(seed, i);
    if (spec.dtype == DType::u8) {
      *at = static_cast<std::byte>(spec.name.ends_with("weight_packed") ? x >> 56 : 122 + (x >> 62));
    } else if (spec.dtype == DType::bf16) {
      const uint16_t bits = f32_to_bf16(value_of(spec.name, i, x));
      std::memcpy(at, &bits, 2);
    } else {
      const float value = value_of(spec.name, i, x);
      std::memcpy(at, &value, 4);
    }
  }
  return out;
}

// The model, or one that differs from it.
struct Variant {
  Json config = golden::config();
  std::vector<int> mla_layers = kMlaLayers;
  std::function<std::vector<std::byte>(const TensorSpec&)> bytes = bytes_of;
};

// Writes config.json, two shards and their index into `dir` (created).
inline void write(const std::filesystem::path& dir, const Variant& variant = {}) {
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << variant.config.dump(2);
  Json weight_map = Json::object();
  for (int file = 1; file <= 2; ++file) {
    const std::string file_name = fmt::format("model-0000{}-of-000002.safetensors", file);
    std::vector<TensorSpec> specs;
    for (const TensorSpec& spec : tensors(variant.mla_layers)) {
      const bool late = spec.name.find(".layers.0.") == std::string::npos && spec.name.find(".layers.1.") == std::string::npos;
      if (late != (file == 2)) continue;
      specs.push_back(spec);
      weight_map[spec.name] = file_name;
    }
    SafetensorsWriter writer(dir / file_name, specs);
    for (const TensorSpec& spec : specs) writer.append(spec.name, variant.bytes(spec));
    writer.finish();
  }
  std::ofstream(dir / "model.safetensors.index.json") << Json{{"metadata", Json::object()}, {"weight_map", weight_map}}.dump(1);
}

}  // namespace weft::golden
