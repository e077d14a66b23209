#include "model/families/qwen_config.h"

namespace weft {
namespace {

// Qwen3-Next spec 2.1 and 11.2.
class Table : ParamTableBuilder {
 public:
  explicit Table(const QwenConfig& config) : c_(config) {}

  std::vector<ParamSpec> build() {
    at(Owner::first, "", {});
    plain_matrix("model.embed_tokens.weight", "embed", {c_.vocab_size, c_.hidden_size}, Split::rows);
    for (int64_t l = 0; l < c_.layer_count; ++l) layer(LayerIndex(l));
    at(Owner::last, "", {});
    plain("model.norm.weight", "final_norm", {c_.hidden_size});
    if (!c_.tie_word_embeddings) linear("lm_head.weight", "lm_head", {c_.vocab_size, c_.hidden_size}, Split::rows);
    return take();
  }

 private:
  void layer(LayerIndex l) {
    at(Owner::layer, fmt::format("model.layers.{}.", l), l);
    plain("input_layernorm.weight", "input_norm", {c_.hidden_size});
    plain("post_attention_layernorm.weight", "post_norm", {c_.hidden_size});
    if (c_.full_at(l))
      attention();
    else
      delta();
    if (c_.is_moe(l))
      moe();
    else
      mlp("mlp.", "mlp.", c_.intermediate_size);
  }

  void delta() {
    const int64_t hidden = c_.hidden_size;
    const int64_t heads = c_.delta.value_heads;
    const int64_t channels = 2 * c_.key_width() + c_.value_width();
    if (c_.interleaved) {
      linear("linear_attn.in_proj_qkvz.weight", "gdn.in_proj_qkvz", {channels + c_.value_width(), hidden}, Split::rows);
      linear("linear_attn.in_proj_ba.weight", "gdn.in_proj_ba", {2 * heads, hidden}, Split::rows);
    } else {
      linear("linear_attn.in_proj_qkv.weight", "gdn.in_proj_qkv", {channels, hidden}, Split::heads);
      linear("linear_attn.in_proj_z.weight", "gdn.in_proj_z", {c_.value_width(), hidden}, Split::rows);
      linear("linear_attn.in_proj_b.weight", "gdn.in_proj_b", {heads, hidden}, Split::rows);
      linear("linear_attn.in_proj_a.weight", "gdn.in_proj_a", {heads, hidden}, Split::rows);
    }
    plain("linear_attn.conv1d.weight", "gdn.conv", {channels, 1, c_.conv_kernel}, Split::heads);
    plain("linear_attn.A_log", "gdn.a_log", {heads}, Split::heads);
    plain("linear_attn.dt_bias", "gdn.dt_bias", {heads}, Split::heads);
    plain("linear_attn.norm.weight", "gdn.norm", {c_.delta.value_size});
    linear("linear_attn.out_proj.weight", "gdn.out_proj", {hidden, c_.value_width()}, Split::cols);
  }

  void attention() {
    const int64_t hidden = c_.hidden_size;
    linear("self_attn.q_proj.weight", "gqa.q_proj", {2 * c_.query_width(), hidden}, Split::heads);
    linear("self_attn.k_proj.weight", "gqa.k_proj", {c_.kv_width(), hidden}, Split::heads);
    linear("self_attn.v_proj.weight", "gqa.v_proj", {c_.kv_width(), hidden}, Split::heads);
    linear("self_attn.o_proj.weight", "gqa.o_proj", {hidden, c_.query_width()}, Split::cols);
    plain("self_attn.q_norm.weight", "gqa.q_norm", {c_.attention.size});
    plain("self_attn.k_norm.weight", "gqa.k_norm", {c_.attention.size});
  }

  void mlp(const std::string& prefix, const std::string& role, int64_t inner) {
    linear(prefix + "gate_proj.weight", role + "gate_proj", {inner, c_.hidden_size}, Split::rows);
    linear(prefix + "up_proj.weight", role + "up_proj", {inner, c_.hidden_size}, Split::rows);
    linear(prefix + "down_proj.weight", role + "down_proj", {c_.hidden_size, inner}, Split::cols);
  }

  void moe() {
    const int64_t hidden = c_.hidden_size;
    const int64_t inner = c_.moe_intermediate_size;
    linear("mlp.gate.weight", "moe.gate", {c_.experts, hidden});
    mlp("mlp.shared_expert.", "moe.shared.", c_.shared_intermediate_size);
    linear("mlp.shared_expert_gate.weight", "moe.shared_gate", {1, hidden});
    experts("mlp.experts.{}.gate_proj.weight", "moe.expert.w1", c_.experts, {inner, hidden}, Split::rows);
    experts("mlp.experts.{}.down_proj.weight", "moe.expert.w2", c_.experts, {hidden, inner}, Split::cols);
    experts("mlp.experts.{}.up_proj.weight", "moe.expert.w3", c_.experts, {inner, hidden}, Split::rows);
  }

  const QwenConfig& c_;
};

}  // namespace

std::vector<ParamSpec> QwenConfig::params() const { return Table(*this).build(); }

// Conversions of MLX stack the experts of a matrix; files of newer transformers libraries fuse gate and up too
// (spec 2.3, 11.2).
std::vector<JoinedTensor> QwenConfig::joined_tensors() const {
  std::vector<JoinedTensor> joined;
  for (LayerIndex layer(0); layer < LayerIndex(layer_count); ++layer) {
    if (!is_moe(layer)) continue;
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    const auto row = [&](std::string_view name) { return fmt::format("{}experts.{{}}.{}.weight", mlp, name); };
    for (const std::string_view name : {"gate_proj", "up_proj", "down_proj"})
      joined.push_back({fmt::format("{}switch_mlp.{}.weight", mlp, name), true, {row(name)}});
    joined.push_back({mlp + "experts.gate_up_proj", true, {row("gate_proj"), row("up_proj")}});
    joined.push_back({mlp + "experts.down_proj", true, {row("down_proj")}});
  }
  return joined;
}

}  // namespace weft
