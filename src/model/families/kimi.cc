#include "model/families/kimi.h"

#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/fault.h"
#include "model/families/kimi_config.h"
#include "model/layered_stage.h"
#include "ops/ops.h"
#include "parallel/communicator.h"

namespace weft {
namespace {

using ops::WeightView;

constexpr float kMlaNormEps = 1e-6F;  // K3 spec 3.5 and 8.1: not rms_norm_eps

// Weights, a shape beside each. Letters as in K3 spec 0.

struct KdaWeights {
  WeightView q_proj, k_proj, v_proj;  // [P, D]
  WeightView f_a_proj;                // [d, D]
  WeightView f_b_proj;                // [P, d]
  WeightView b_proj;                  // [Hk, D]
  WeightView g_proj;                  // [P, D], full-rank gate
  WeightView g_a_proj, g_b_proj;      // [d, D], [P, d], low-rank gate
  WeightView o_proj;                  // [D, P]
  Tensor q_conv, k_conv, v_conv;      // [P, Kc]
  Tensor a_log;                       // [Hk]
  Tensor dt_bias;                     // [P]
  Tensor o_norm;                      // [d]
};

struct MlaWeights {
  WeightView q_proj;              // [Hm*(dn+dr), D], without q-LoRA
  WeightView q_a_proj, q_b_proj;  // [rq, D], [Hm*(dn+dr), rq]
  Tensor q_a_norm;                // [rq]
  WeightView kv_a_proj;           // [rc+dr, D]
  Tensor kv_a_norm;               // [rc]
  WeightView keys, values;        // kv_b_proj [Hm*(dn+dv), rc] twice, or embed_q [Hm*rc, dn] and unembed_out [Hm*dv, rc]
  WeightView g_proj;              // [Hm*dv, D], with the output gate
  WeightView o_proj;              // [D, Hm*dv]
};

struct MoeWeights {
  WeightView gate;                    // [E, D]
  Tensor bias;                        // [E]
  WeightView latent_down, latent_up;  // [Z, D], [D, Z]
  Tensor latent_norm;                 // [Z]
  MlpWeights shared;                  // [Ns*M, D], [D, Ns*M]
};

struct LayerWeights {
  Tensor input_norm, post_norm;   // [D]
  Tensor attention_mix, mlp_mix;  // [D] norm.weight * proj.weight of the residual mix
  std::variant<KdaWeights, MlaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
};

struct HeadWeights {
  Tensor output_mix;  // [D]
  Tensor norm;        // [D]
};

// Binds the weights of a layer and of the head.
class KimiBinder {
 public:
  KimiBinder(const Binder& binder, const KimiConfig& config) : binder_(binder), config_(config) {}

  LayerWeights layer(LayerIndex layer) const {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    LayerWeights weights;
    weights.input_norm = vector(prefix + "input_layernorm.weight");
    weights.post_norm = vector(prefix + "post_attention_layernorm.weight");
    if (config_.residual_block) {
      weights.attention_mix = mix(prefix + "self_attention_res");
      weights.mlp_mix = mix(prefix + "mlp_res");
    }
    if (config_.kda_at(layer)) {
      weights.attention = kda(prefix + "self_attn.");
    } else {
      weights.attention = mla(prefix + "self_attn.");
    }
    if (config_.is_moe(layer)) {
      weights.mlp = moe(prefix + "block_sparse_moe.");
    } else {
      weights.mlp = bind_mlp(binder_, prefix + "mlp.");
    }
    return weights;
  }

  HeadWeights head() const {
    HeadWeights weights;
    if (config_.residual_block) weights.output_mix = mix("model.output_attn_res");
    weights.norm = vector("model.norm.weight");
    return weights;
  }

 private:
  WeightView matrix(const std::string& name) const { return binder_.matrix(name); }
  Tensor vector(const std::string& name) const { return binder_.vector(name); }

  // w = norm.weight * proj.weight in float32, an exact load-time fusion (K3 spec 2.5).
  Tensor mix(const std::string& stem) const {
    Tensor product = binder_.checkpoint().vector_f32(stem + "_norm.weight");
    const Tensor proj = binder_.checkpoint().vector_f32(stem + "_proj.weight");
    const std::span<float> values = product.as<float>();
    for (size_t i = 0; i < values.size(); ++i) values[i] *= proj.as<float>()[i];
    return binder_.place(std::move(product));
  }

  KdaWeights kda(const std::string& prefix) const {
    KdaWeights weights;
    weights.q_proj = matrix(prefix + "q_proj.weight");
    weights.k_proj = matrix(prefix + "k_proj.weight");
    weights.v_proj = matrix(prefix + "v_proj.weight");
    weights.f_a_proj = matrix(prefix + "f_a_proj.weight");
    weights.f_b_proj = matrix(prefix + "f_b_proj.weight");
    weights.b_proj = matrix(prefix + "b_proj.weight");
    if (config_.full_rank_gate) {
      weights.g_proj = matrix(prefix + "g_proj.weight");
    } else {
      weights.g_a_proj = matrix(prefix + "g_a_proj.weight");
      weights.g_b_proj = matrix(prefix + "g_b_proj.weight");
    }
    weights.o_proj = matrix(prefix + "o_proj.weight");
    weights.q_conv = vector(prefix + "q_conv1d.weight");
    weights.k_conv = vector(prefix + "k_conv1d.weight");
    weights.v_conv = vector(prefix + "v_conv1d.weight");
    weights.a_log = binder_.place(binder_.checkpoint().prefix_f32(prefix + "A_log"));
    weights.dt_bias = vector(prefix + "dt_bias");
    weights.o_norm = vector(prefix + "o_norm.weight");
    return weights;
  }

  MlaWeights mla(const std::string& prefix) const {
    MlaWeights weights;
    if (config_.q_lora_rank) {
      weights.q_a_proj = matrix(prefix + "q_a_proj.weight");
      weights.q_a_norm = vector(prefix + "q_a_layernorm.weight");
      weights.q_b_proj = matrix(prefix + "q_b_proj.weight");
    } else {
      weights.q_proj = matrix(prefix + "q_proj.weight");
    }
    weights.kv_a_proj = matrix(prefix + "kv_a_proj_with_mqa.weight");
    weights.kv_a_norm = vector(prefix + "kv_a_layernorm.weight");
    const bool apart = binder_.checkpoint().has(prefix + "embed_q.weight");
    weights.keys = matrix(prefix + (apart ? "embed_q.weight" : "kv_b_proj.weight"));
    weights.values = apart ? matrix(prefix + "unembed_out.weight") : weights.keys;
    if (config_.mla_output_gate) weights.g_proj = matrix(prefix + "g_proj.weight");
    weights.o_proj = matrix(prefix + "o_proj.weight");
    return weights;
  }

  MoeWeights moe(const std::string& prefix) const {
    MoeWeights weights;
    weights.gate = matrix(prefix + "gate.weight");
    weights.bias = vector(prefix + "gate.e_score_correction_bias");
    if (config_.latent_size) {
      weights.latent_down = matrix(prefix + "routed_expert_down_proj.weight");
      weights.latent_up = matrix(prefix + "routed_expert_up_proj.weight");
      if (config_.latent_norm) weights.latent_norm = vector(prefix + "routed_expert_norm.weight");
    }
    if (config_.shared_experts > 0) weights.shared = bind_mlp(binder_, prefix + "shared_experts.");
    return weights;
  }

  const Binder& binder_;
  const KimiConfig& config_;
};

class KimiStage final : public LayeredStage {
 public:
  KimiStage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options)
      : LayeredStage(std::move(checkpoint), options), config_(dynamic_cast<const KimiConfig&>(this->checkpoint().config())) {
    const KimiBinder binder(this->binder(), config_);
    if (last()) head_ = binder.head();
    for (LayerIndex layer = layers().begin; layer < layers().end; ++layer) weights_.push_back(binder.layer(layer));
    bound();
  }

 private:
  void run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer,
                 Residual& residual) override;
  TensorView head_input(ops::Context& context, const Batch& batch, const Residual& rows) override;
  // Input of a sub-layer: the mix, or the running sum where there are no residual blocks.
  TensorView mixed(ops::Context& context, const Residual& residual, const Tensor& mix_weight);
  void kda(ops::Context& context, const StepTables::Layer& tables, const KdaWeights& weights, TensorView x,
           MutableTensorView y);
  void mla(ops::Context& context, const StepTables::Layer& tables, const MlaWeights& weights, TensorView x,
           MutableTensorView y);
  void moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
           MutableTensorView y);

  const KimiConfig& config_;
  HeadWeights head_;  // last stage
  std::vector<LayerWeights> weights_;
};

TensorView KimiStage::mixed(ops::Context& context, const Residual& residual, const Tensor& mix_weight) {
  if (residual.blocks.empty()) return residual.hidden->view();
  std::vector<TensorView> sources;
  for (const auto& block : residual.blocks) sources.push_back(block->view());
  sources.push_back(residual.hidden->view());
  const MutableTensorView out = take(residual.hidden->shape());
  ops::residual_mix(context, sources, mix_weight.view(), config_.rms_norm_eps, out);
  return out;
}

void KimiStage::run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer,
                          Residual& residual) {
  const size_t index = index_of(layer);
  const LayerWeights& weights = weights_[index];
  const Workspace::Scope scope(workspace());
  const Shape rows{batch.rows(), config_.hidden_size};
  const MutableTensorView normed = take(rows);
  const MutableTensorView y = take(rows);
  const auto accumulate = [&] { ops::add(context, residual.hidden->view(), y, residual.hidden->mutable_view()); };

  const bool starts_block = config_.starts_block(layer);
  const auto freeze_block = [&] { residual.blocks.push_back(residual.hidden); };

  if (starts_block && on(Fault::block_before_attention_mix)) freeze_block();
  const TensorView attention_in = mixed(context, residual, weights.attention_mix);
  trace(batch, TracePoint::attn_in, layer, attention_in);
  ops::rms_norm(context, attention_in, weights.input_norm.view(), config_.rms_norm_eps, normed);
  if (const auto* kda_weights = std::get_if<KdaWeights>(&weights.attention)) {
    kda(context, tables.layers[index], *kda_weights, normed, y);
  } else {
    mla(context, tables.layers[index], std::get<MlaWeights>(weights.attention), normed, y);
  }
  trace(batch, TracePoint::attn_out, layer, y);
  // The mix above still saw the old blocks; only now is the running sum frozen and restarted (K3 spec 3.2).
  if (starts_block && !on(Fault::block_before_attention_mix)) freeze_block();
  if (starts_block && on(Fault::sum_not_restarted)) residual.hidden = copy_of(residual.hidden->view());
  if (starts_block && !on(Fault::sum_not_restarted)) {
    residual.hidden = copy_of(y);
  } else {
    accumulate();
  }
  trace(batch, TracePoint::after_attn, layer, residual.hidden->view());
  look(context, batch, layer, FiniteWatch::Place::attention, residual);

  const TensorView mlp_in = on(Fault::mlp_mix_skipped) ? residual.hidden->view() : mixed(context, residual, weights.mlp_mix);
  trace(batch, TracePoint::mlp_in, layer, mlp_in);
  ops::rms_norm(context, mlp_in, weights.post_norm.view(), config_.rms_norm_eps, normed);
  if (const auto* dense = std::get_if<MlpWeights>(&weights.mlp)) {
    mlp(context, *dense, normed, y);
    context.comm->all_reduce(y);
  } else {
    moe(context, batch, layer, std::get<MoeWeights>(weights.mlp), normed, y);
  }
  trace(batch, TracePoint::mlp_out, layer, y);
  accumulate();
  trace(batch, TracePoint::out, layer, residual.hidden->view());
  look(context, batch, layer, FiniteWatch::Place::mlp, residual);
}

void KimiStage::kda(ops::Context& context, const StepTables::Layer& tables, const KdaWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const Shape wide{x.shape[0], config_.kda_width()};
  const auto& [state, q_history, k_history, v_history] = tables.slots;  // as state_layout() orders them
  const auto convolved = [&](const WeightView& proj, const Tensor& taps, std::span<const ops::StateSegment> history) {
    const MutableTensorView out = take(wide);
    ops::short_conv(context, linear(context, x, proj), taps.view(), history, out);
    return out;
  };
  const MutableTensorView q = convolved(weights.q_proj, weights.q_conv, q_history);
  const MutableTensorView k = convolved(weights.k_proj, weights.k_conv, k_history);
  const MutableTensorView v = convolved(weights.v_proj, weights.v_conv, v_history);
  const MutableTensorView decay_in = linear(context, linear(context, x, weights.f_a_proj), weights.f_b_proj);
  const MutableTensorView decay = take(wide);
  ops::kda_gate(context, decay_in, weights.a_log.view(), weights.dt_bias.view(), config_.gate_lower_bound, decay);
  const MutableTensorView beta = linear(context, x, weights.b_proj);
  const MutableTensorView o = take(wide);
  const ops::DeltaShape shape{config_.kda_heads, config_.kda_heads, config_.kda_head_dim, config_.kda_head_dim, true};
  ops::delta_rule(context, shape, q, k, v, decay, beta, state, o);
  const MutableTensorView gate = config_.full_rank_gate
                                     ? linear(context, x, weights.g_proj)
                                     : linear(context, linear(context, x, weights.g_a_proj), weights.g_b_proj);
  const MutableTensorView gated = take(wide);
  ops::gated_rms_norm(context, o, weights.o_norm.view(), config_.rms_norm_eps, gate, gated);
  ops::linear(context, gated, weights.o_proj, y);
  context.comm->all_reduce(y);
}

void KimiStage::mla(ops::Context& context, const StepTables::Layer& tables, const MlaWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const ops::MlaShape& shape = config_.mla;
  const int64_t rows = x.shape[0];
  const float norm_eps = on(Fault::mla_norm_epsilon) ? config_.rms_norm_eps : kMlaNormEps;

  MutableTensorView q;  // [T, Hm*(dn+dr)]
  if (config_.q_lora_rank) {
    const MutableTensorView low = linear(context, x, weights.q_a_proj);
    const MutableTensorView low_normed = take(low.shape);
    ops::rms_norm(context, low, weights.q_a_norm.view(), norm_eps, low_normed);
    q = linear(context, low_normed, weights.q_b_proj);
  } else {
    q = linear(context, x, weights.q_proj);
  }
  const MutableTensorView raw_latent = linear(context, x, weights.kv_a_proj.rows(0, shape.latent));
  const MutableTensorView k_rope = linear(context, x, weights.kv_a_proj.rows(shape.latent, shape.latent + shape.rope));
  const MutableTensorView latent = take(raw_latent.shape);
  ops::rms_norm(context, raw_latent, weights.kv_a_norm.view(), norm_eps, latent);

  ops::mla_append(context, shape, latent, k_rope, tables.pages);

  const MutableTensorView q_latent = take({rows, shape.heads * shape.latent});
  ops::mla_absorb_query(context, shape, q, weights.keys, q_latent);
  const MutableTensorView attended = take({rows, shape.heads * shape.latent});
  ops::mla_attention(context, shape, q, q_latent, tables.pages, attended);
  MutableTensorView o = take({rows, shape.heads * shape.value});
  ops::mla_project_value(context, shape, attended, weights.values, o);
  if (config_.mla_output_gate) {
    const MutableTensorView gated = take(o.shape);
    ops::sigmoid_gate(context, o, linear(context, x, weights.g_proj), gated);
    o = gated;
  }
  ops::linear(context, o, weights.o_proj, y);
  context.comm->all_reduce(y);
}

void KimiStage::moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const int64_t rows = batch.rows();
  const TensorView z = config_.latent_size ? TensorView(linear(context, x, weights.latent_down)) : x;
  const MutableTensorView sum = routed(context, batch, layer, weights.gate, weights.bias.view(), x, z);
  const MutableTensorView shared = take({rows, config_.hidden_size});
  if (config_.shared_experts > 0) {
    mlp(context, weights.shared, x, shared);
    context.comm->all_reduce(shared);
  }
  // The norm acts on the complete sum over experts, so ranks are summed first (K3 spec 6).
  context.comm->all_reduce(sum);

  MutableTensorView result = sum;
  if (config_.latent_size) {
    if (config_.latent_norm) {
      result = take(sum.shape);
      ops::rms_norm(context, sum, weights.latent_norm.view(), config_.rms_norm_eps, result);
    }
    result = linear(context, result, weights.latent_up);
  }
  if (config_.shared_experts > 0) {
    ops::add(context, result, shared, y);
  } else {
    device().copy(y.data, result.data, y.bytes());
  }
}

TensorView KimiStage::head_input(ops::Context& context, const Batch& batch, const Residual& rows) {
  const LayerIndex last_layer = layers().end - LayerIndex(1);
  const TensorView x = on(Fault::output_mix_skipped) ? rows.hidden->view() : mixed(context, rows, head_.output_mix);
  trace(batch, TracePoint::mixed, last_layer, x);
  const MutableTensorView normed = take(x.shape);
  ops::rms_norm(context, x, head_.norm.view(), config_.rms_norm_eps, normed);
  trace(batch, TracePoint::final_norm, last_layer, normed);
  return normed;
}

}  // namespace

std::unique_ptr<Stage> make_kimi_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options) {
  return std::make_unique<KimiStage>(std::move(checkpoint), options);
}

}  // namespace weft
