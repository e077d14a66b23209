// Random models of about a megabyte in the published layouts.
#pragma once

#include <filesystem>

#include "model/synth.h"

namespace weft::testing_support {

inline SynthOptions small_synth(const std::filesystem::path& out) {
  SynthOptions options;
  options.out = out;
  options.layers = 5;
  options.set = {"hidden_size=64",
                 "intermediate_size=96",
                 "num_attention_heads=2",
                 "num_key_value_heads=2",
                 "q_lora_rank=32",
                 "kv_lora_rank=32",
                 "qk_nope_head_dim=16",
                 "qk_rope_head_dim=8",
                 "v_head_dim=16",
                 "num_experts=8",
                 "num_experts_per_token=2",
                 "moe_intermediate_size=32",
                 "vocab_size=512",
                 "attn_res_block_size=2",
                 "routed_expert_hidden_size=32",
                 "num_shared_experts=1",
                 "max_position_embeddings=4096",
                 "linear_attn_config.num_heads=2",
                 "linear_attn_config.head_dim=32"};
  return options;
}

// A random Qwen3-Next of less.
inline SynthOptions small_qwen(const std::filesystem::path& out) {
  SynthOptions options;
  options.preset = "qwen3-next";
  options.out = out;
  options.layers = 5;
  options.set = {"hidden_size=64",
                 "num_experts=8",
                 "num_experts_per_tok=2",
                 "moe_intermediate_size=32",
                 "shared_expert_intermediate_size=32",
                 "vocab_size=512",
                 "head_dim=32",
                 "num_attention_heads=4",
                 "linear_num_key_heads=2",
                 "linear_num_value_heads=4",
                 "linear_key_head_dim=32",
                 "linear_value_head_dim=32",
                 "max_position_embeddings=4096"};
  return options;
}

}  // namespace weft::testing_support
