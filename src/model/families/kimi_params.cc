#include "model/families/kimi_config.h"

namespace weft {
namespace {

class Table : ParamTableBuilder {
 public:
  explicit Table(const KimiConfig& config, std::function<bool(std::string_view)> stores = nullptr)
      : c_(config), stores_(std::move(stores)) {}

  std::vector<ParamSpec> build() {
    at(Owner::first, "", {});
    plain_matrix("model.embed_tokens.weight", "embed", {c_.vocab_size, c_.hidden_size}, Split::rows);
    for (int64_t l = 0; l < c_.layer_count; ++l) layer(LayerIndex(l));
    at(Owner::last, "", {});
    plain("model.norm.weight", "final_norm", {c_.hidden_size});
    if (c_.residual_block) {
      plain("model.output_attn_res_norm.weight", "output_res.norm", {c_.hidden_size});
      plain("model.output_attn_res_proj.weight", "output_res.proj", {1, c_.hidden_size});
    }
    if (!c_.tie_word_embeddings) linear("lm_head.weight", "lm_head", {c_.vocab_size, c_.hidden_size}, Split::rows);
    return take();
  }

 private:
  void layer(LayerIndex l) {
    at(Owner::layer, fmt::format("model.layers.{}.", l), l);
    plain("input_layernorm.weight", "input_norm", {c_.hidden_size});
    plain("post_attention_layernorm.weight", "post_norm", {c_.hidden_size});
    if (c_.residual_block) {
      plain("self_attention_res_norm.weight", "attn_res.norm", {c_.hidden_size});
      plain("self_attention_res_proj.weight", "attn_res.proj", {1, c_.hidden_size});
      plain("mlp_res_norm.weight", "mlp_res.norm", {c_.hidden_size});
      plain("mlp_res_proj.weight", "mlp_res.proj", {1, c_.hidden_size});
    }
    if (c_.kda_at(l))
      kda();
    else
      mla(l);
    if (c_.is_moe(l))
      moe();
    else
      dense();
  }

  void kda() {
    const int64_t d = c_.kda_head_dim;
    const int64_t width = c_.kda_width();
    const int64_t hidden = c_.hidden_size;
    linear("self_attn.q_proj.weight", "kda.q_proj", {width, hidden}, Split::rows);
    linear("self_attn.k_proj.weight", "kda.k_proj", {width, hidden}, Split::rows);
    linear("self_attn.v_proj.weight", "kda.v_proj", {width, hidden}, Split::rows);
    if (c_.full_rank_gate) {
      linear("self_attn.g_proj.weight", "kda.g_proj", {width, hidden}, Split::rows);
    } else {
      linear("self_attn.g_a_proj.weight", "kda.g_a_proj", {d, hidden});
      linear("self_attn.g_b_proj.weight", "kda.g_b_proj", {width, d}, Split::rows);
    }
    linear("self_attn.o_proj.weight", "kda.o_proj", {hidden, width}, Split::cols);
    linear("self_attn.f_a_proj.weight", "kda.f_a_proj", {d, hidden});
    linear("self_attn.f_b_proj.weight", "kda.f_b_proj", {width, d}, Split::rows);
    linear("self_attn.b_proj.weight", "kda.b_proj", {c_.kda_heads, hidden}, Split::heads);
    wide("self_attn.q_conv1d.weight", "kda.q_conv", {width, 1, c_.conv_kernel}, Split::rows);
    wide("self_attn.k_conv1d.weight", "kda.k_conv", {width, 1, c_.conv_kernel}, Split::rows);
    wide("self_attn.v_conv1d.weight", "kda.v_conv", {width, 1, c_.conv_kernel}, Split::rows);
    add("self_attn.A_log", "kda.a_log", {c_.kda_heads}, DType::f32, Storage::prefix, Split::heads);
    wide("self_attn.dt_bias", "kda.dt_bias", {width}, Split::rows);
    wide("self_attn.o_norm.weight", "kda.o_norm", {d});
  }

  void mla(LayerIndex l) {
    const ops::MlaShape& m = c_.mla;
    const int64_t hidden = c_.hidden_size;
    const int64_t query = m.heads * (m.nope + m.rope);
    if (c_.q_lora_rank) {
      linear("self_attn.q_a_proj.weight", "mla.q_a_proj", {*c_.q_lora_rank, hidden});
      plain("self_attn.q_a_layernorm.weight", "mla.q_a_norm", {*c_.q_lora_rank});
      linear("self_attn.q_b_proj.weight", "mla.q_b_proj", {query, *c_.q_lora_rank}, Split::heads);
    } else {
      linear("self_attn.q_proj.weight", "mla.q_proj", {query, hidden}, Split::heads);
    }
    linear("self_attn.kv_a_proj_with_mqa.weight", "mla.kv_a_proj", {m.latent + m.rope, hidden});
    plain("self_attn.kv_a_layernorm.weight", "mla.kv_a_norm", {m.latent});
    if (stores_ && stores_(fmt::format("model.layers.{}.self_attn.embed_q.weight", l))) {  // [Hm, rc, dn] and [Hm, dv, rc]
      linear("self_attn.embed_q.weight", "mla.embed_q", {m.heads * m.latent, m.nope}, Split::heads);
      linear("self_attn.unembed_out.weight", "mla.unembed_out", {m.heads * m.value, m.latent}, Split::heads);
    } else {
      linear("self_attn.kv_b_proj.weight", "mla.kv_b_proj", {m.heads * (m.nope + m.value), m.latent}, Split::heads);
    }
    if (c_.mla_output_gate) linear("self_attn.g_proj.weight", "mla.g_proj", {m.heads * m.value, hidden}, Split::heads);
    linear("self_attn.o_proj.weight", "mla.o_proj", {hidden, m.heads * m.value}, Split::cols);
  }

  void dense() {
    linear("mlp.gate_proj.weight", "mlp.gate_proj", {c_.intermediate_size, c_.hidden_size}, Split::rows);
    linear("mlp.up_proj.weight", "mlp.up_proj", {c_.intermediate_size, c_.hidden_size}, Split::rows);
    linear("mlp.down_proj.weight", "mlp.down_proj", {c_.hidden_size, c_.intermediate_size}, Split::cols);
  }

  void moe() {
    const int64_t hidden = c_.hidden_size;
    const int64_t width = c_.expert_width();
    const int64_t inner = c_.moe_intermediate_size;
    // The router's matrix is a bare parameter of the published module, not a Linear: it is never packed (MX spec 2.5).
    plain_matrix("block_sparse_moe.gate.weight", "moe.gate", {c_.experts, hidden});
    wide("block_sparse_moe.gate.e_score_correction_bias", "moe.bias", {c_.experts});
    if (c_.latent_size) {
      linear("block_sparse_moe.routed_expert_down_proj.weight", "moe.latent_down", {width, hidden});
      if (c_.latent_norm) plain("block_sparse_moe.routed_expert_norm.weight", "moe.latent_norm", {width});
      linear("block_sparse_moe.routed_expert_up_proj.weight", "moe.latent_up", {hidden, width});
    }
    if (c_.shared_experts > 0) {
      const int64_t shared = c_.shared_experts * inner;
      linear("block_sparse_moe.shared_experts.gate_proj.weight", "moe.shared.gate_proj", {shared, hidden}, Split::rows);
      linear("block_sparse_moe.shared_experts.up_proj.weight", "moe.shared.up_proj", {shared, hidden}, Split::rows);
      linear("block_sparse_moe.shared_experts.down_proj.weight", "moe.shared.down_proj", {hidden, shared}, Split::cols);
    }
    experts("block_sparse_moe.experts.{}.w1.weight", "moe.expert.w1", c_.experts, {inner, width}, Split::rows);
    experts("block_sparse_moe.experts.{}.w2.weight", "moe.expert.w2", c_.experts, {width, inner}, Split::cols);
    experts("block_sparse_moe.experts.{}.w3.weight", "moe.expert.w3", c_.experts, {inner, width}, Split::rows);
  }

  const KimiConfig& c_;
  std::function<bool(std::string_view)> stores_;  // of a conversion of MLX
};

}  // namespace

std::vector<ParamSpec> KimiConfig::params() const { return Table(*this).build(); }

std::vector<ParamSpec> KimiConfig::mlx_params(const std::function<bool(std::string_view name)>& stores) const {
  return Table(*this, stores).build();
}

// Conversions of MLX stack the experts of a matrix, and may fuse the projections and convolutions of KDA.
std::vector<JoinedTensor> KimiConfig::joined_tensors() const {
  std::vector<JoinedTensor> joined;
  for (LayerIndex layer(0); layer < LayerIndex(layer_count); ++layer) {
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    if (kda_at(layer)) {
      const auto three = [&](std::string_view suffix) {
        std::vector<std::string> rows;
        for (const char name : {'q', 'k', 'v'}) rows.push_back(fmt::format("{}{}_{}.weight", attention, name, suffix));
        return rows;
      };
      joined.push_back({attention + "qkv_proj.weight", false, three("proj")});
      joined.push_back({attention + "qkv_conv.conv.weight", false, three("conv1d")});
    }
    if (!is_moe(layer)) continue;
    const std::string moe = fmt::format("model.layers.{}.block_sparse_moe.", layer);
    for (const auto& [stacked, row] : {std::pair{"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}})
      joined.push_back(
          {fmt::format("{}switch_mlp.{}.weight", moe, stacked), true, {fmt::format("{}experts.{{}}.{}.weight", moe, row)}});
  }
  return joined;
}

}  // namespace weft
