#include "model/families/qwen.h"

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/families/qwen_config.h"
#include "model/layered_stage.h"
#include "ops/ops.h"
#include "ops/rotary_table.h"
#include "parallel/communicator.h"

namespace weft {
namespace {

using ops::NormRounding;
using ops::WeightView;

// Weights, a shape beside each. Letters as in Qwen3-Next spec 1.

struct GdnWeights {
  WeightView in_proj_qkvz;  // [2*Nk*Dk + 2*Nv*Dv, H], rows grouped by key head
  WeightView in_proj_ba;    // [2*Nv, H], likewise
  WeightView in_proj_qkv;   // [2*Nk*Dk + Nv*Dv, H], instead of the two
  WeightView in_proj_z;     // [Nv*Dv, H]
  WeightView in_proj_b;     // [Nv, H]
  WeightView in_proj_a;     // [Nv, H]
  Tensor conv;              // [2*Nk*Dk + Nv*Dv, Kc], channels of q, then k, then v
  Tensor a_log, dt_bias;    // [Nv]
  Tensor norm;              // [Dv]
  WeightView out_proj;      // [H, Nv*Dv]
};

struct GqaWeights {
  WeightView q_proj;          // [Nq*2*Dh, H], a head's queries, then its gates
  WeightView k_proj, v_proj;  // [Nkv*Dh, H]
  WeightView o_proj;          // [H, Nq*Dh]
  Tensor q_norm, k_norm;      // [Dh], 1 + w
};

struct MoeWeights {
  WeightView gate;         // [E, H]
  MlpWeights shared;       // [Is, H], [H, Is]
  WeightView shared_gate;  // [1, H]
};

struct LayerWeights {
  Tensor input_norm, post_norm;  // [H], 1 + w
  std::variant<GdnWeights, GqaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
};

class QwenBinder {
 public:
  QwenBinder(const Binder& binder, const QwenConfig& config) : binder_(binder), config_(config) {}

  LayerWeights layer(LayerIndex layer) const {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    LayerWeights weights;
    weights.input_norm = centred(prefix + "input_layernorm.weight");
    weights.post_norm = centred(prefix + "post_attention_layernorm.weight");
    if (config_.full_at(layer)) {
      weights.attention = attention(prefix + "self_attn.");
    } else {
      weights.attention = delta(prefix + "linear_attn.");
    }
    if (config_.is_moe(layer)) {
      weights.mlp = MoeWeights{matrix(prefix + "mlp.gate.weight"), bind_mlp(binder_, prefix + "mlp.shared_expert."),
                               matrix(prefix + "mlp.shared_expert_gate.weight")};
    } else {
      weights.mlp = bind_mlp(binder_, prefix + "mlp.");
    }
    return weights;
  }

  // The effective weight of a zero-centred norm, 1 + w in float32 (spec 3.1); conversions store it so (spec 2.3).
  Tensor centred(const std::string& name) const {
    Tensor weight = binder_.checkpoint().vector_f32(name);
    if (!binder_.checkpoint().norms_hold_the_one()) {
      for (float& value : weight.as<float>()) value += 1.0F;
    }
    return binder_.place(std::move(weight));
  }

 private:
  WeightView matrix(const std::string& name) const { return binder_.matrix(name); }
  Tensor vector(const std::string& name) const { return binder_.vector(name); }

  GdnWeights delta(const std::string& prefix) const {
    GdnWeights weights;
    if (config_.interleaved) {
      weights.in_proj_qkvz = matrix(prefix + "in_proj_qkvz.weight");
      weights.in_proj_ba = matrix(prefix + "in_proj_ba.weight");
    } else {
      weights.in_proj_qkv = matrix(prefix + "in_proj_qkv.weight");
      weights.in_proj_z = matrix(prefix + "in_proj_z.weight");
      weights.in_proj_b = matrix(prefix + "in_proj_b.weight");
      weights.in_proj_a = matrix(prefix + "in_proj_a.weight");
    }
    weights.conv = vector(prefix + "conv1d.weight");
    weights.a_log = vector(prefix + "A_log");
    weights.dt_bias = vector(prefix + "dt_bias");
    weights.norm = vector(prefix + "norm.weight");
    weights.out_proj = matrix(prefix + "out_proj.weight");
    return weights;
  }

  GqaWeights attention(const std::string& prefix) const {
    return {matrix(prefix + "q_proj.weight"), matrix(prefix + "k_proj.weight"),  matrix(prefix + "v_proj.weight"),
            matrix(prefix + "o_proj.weight"), centred(prefix + "q_norm.weight"), centred(prefix + "k_norm.weight")};
  }

  const Binder& binder_;
  const QwenConfig& config_;
};

// Rows [begin, end) of a tensor of rank 2.
TensorView rows_of(const Tensor& tensor, int64_t begin, int64_t end) {
  const TensorView all = tensor.view();
  const int64_t row_bytes = all.shape[1] * size_of(all.dtype);
  return {all.dtype, {end - begin, all.shape[1]}, all.data + begin * row_bytes};
}

// The heads of each row as rows of their own: [T, heads * size] as [T * heads, size].
MutableTensorView by_head(MutableTensorView x, int64_t size) { return {x.dtype, {x.elements() / size, size}, x.data}; }

class QwenStage final : public LayeredStage {
 public:
  QwenStage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options)
      : LayeredStage(std::move(checkpoint), options), config_(dynamic_cast<const QwenConfig&>(this->checkpoint().config())) {
    const QwenBinder binder(this->binder(), config_);
    if (last()) final_norm_ = binder.centred("model.norm.weight");
    for (LayerIndex layer = layers().begin; layer < layers().end; ++layer) {
      weights_.push_back(binder.layer(layer));
      rotates_ = rotates_ || config_.full_at(layer);
    }
    // theta^(-2i/R) (spec 3.5), rounded to float32 as the angles are.
    for (int64_t i = 0; i < config_.rotary / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config_.rotary);
      inverse_frequencies_.push_back(static_cast<float>(std::pow(config_.rope_theta, exponent)));
    }
    bound();
  }

 private:
  void run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer,
                 Residual& residual) override;
  TensorView head_input(ops::Context& context, const Batch& batch, const Residual& rows) override;
  [[nodiscard]] int64_t rotary_floats() const override { return rotates_ ? config_.rotary : 0; }
  void fill_rotary(std::span<const int64_t> positions, std::span<float> table) const override {
    ops::rotary_table(positions, inverse_frequencies_, 1.0F, table);
  }

  void norm(ops::Context& context, TensorView x, const Tensor& weight, MutableTensorView y) const {
    ops::rms_norm(context, x, weight.view(), config_.rms_norm_eps, y, NormRounding::once);
  }
  void gdn(ops::Context& context, const StepTables::Layer& tables, const GdnWeights& weights, TensorView x,
           MutableTensorView y);
  void gqa(ops::Context& context, const StepTables& step, const StepTables::Layer& tables, const GqaWeights& weights,
           TensorView x, MutableTensorView y);
  void moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
           MutableTensorView y);

  const QwenConfig& config_;
  Tensor final_norm_;  // [H], 1 + w, last stage
  std::vector<LayerWeights> weights_;
  std::vector<float> inverse_frequencies_;  // [R / 2]
  bool rotates_ = false;                    // a layer of the stage does
};

void QwenStage::run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer,
                          Residual& residual) {
  const LayerWeights& weights = weights_[index_of(layer)];
  const StepTables::Layer& of_layer = tables.layers[index_of(layer)];
  const Workspace::Scope scope(workspace());
  const Shape rows{batch.rows(), config_.hidden_size};
  const MutableTensorView normed = take(rows);
  const MutableTensorView y = take(rows);
  const MutableTensorView hidden = residual.hidden->mutable_view();

  trace(batch, TracePoint::attn_in, layer, hidden);
  norm(context, hidden, weights.input_norm, normed);
  if (const auto* delta = std::get_if<GdnWeights>(&weights.attention)) {
    gdn(context, of_layer, *delta, normed, y);
  } else {
    gqa(context, tables, of_layer, std::get<GqaWeights>(weights.attention), normed, y);
  }
  trace(batch, TracePoint::attn_out, layer, y);
  ops::add(context, hidden, y, hidden);
  trace(batch, TracePoint::after_attn, layer, hidden);
  look(context, batch, layer, FiniteWatch::Place::attention, residual);

  trace(batch, TracePoint::mlp_in, layer, hidden);
  norm(context, hidden, weights.post_norm, normed);
  if (const auto* dense = std::get_if<MlpWeights>(&weights.mlp)) {
    mlp(context, *dense, normed, y);
  } else {
    moe(context, batch, layer, std::get<MoeWeights>(weights.mlp), normed, y);
  }
  context.comm->all_reduce(y);
  trace(batch, TracePoint::mlp_out, layer, y);
  ops::add(context, hidden, y, hidden);
  trace(batch, TracePoint::out, layer, hidden);
  look(context, batch, layer, FiniteWatch::Place::mlp, residual);
}

void QwenStage::gdn(ops::Context& context, const StepTables::Layer& tables, const GdnWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const int64_t rows = x.shape[0];
  const ops::DeltaShape& shape = config_.delta;
  const int64_t keys = config_.key_width();
  const int64_t values = config_.value_width();

  MutableTensorView q, k;     // [T, Nk*Dk]
  MutableTensorView v, z;     // [T, Nv*Dv]
  MutableTensorView beta, a;  // [T, Nv]
  if (config_.interleaved) {
    q = take({rows, keys});
    k = take({rows, keys});
    v = take({rows, values});
    z = take({rows, values});
    ops::split_groups(context, linear(context, x, weights.in_proj_qkvz), config_.qkvz_slabs(), std::array{q, k, v, z});
    beta = take({rows, shape.value_heads});
    a = take({rows, shape.value_heads});
    ops::split_groups(context, linear(context, x, weights.in_proj_ba), config_.ba_slabs(), std::array{beta, a});
  } else {
    q = linear(context, x, weights.in_proj_qkv.rows(0, keys));
    k = linear(context, x, weights.in_proj_qkv.rows(keys, 2 * keys));
    v = linear(context, x, weights.in_proj_qkv.rows(2 * keys, 2 * keys + values));
    z = linear(context, x, weights.in_proj_z);
    beta = linear(context, x, weights.in_proj_b);
    a = linear(context, x, weights.in_proj_a);
  }

  // One depthwise convolution over the channels of q, k and v: each part has its own taps and history.
  const auto& [state, q_history, k_history, v_history] = tables.slots;  // as state_layout() orders them
  int64_t channel = 0;
  const auto convolved = [&](MutableTensorView part, std::span<const ops::StateSegment> history) {
    const MutableTensorView out = take(part.shape);
    const int64_t width = part.shape[1];
    ops::short_conv(context, part, rows_of(weights.conv, channel, channel + width), history, out);
    channel += width;
    return out;
  };
  const MutableTensorView q_conv = convolved(q, q_history);
  const MutableTensorView k_conv = convolved(k, k_history);
  const MutableTensorView v_conv = convolved(v, v_history);

  const MutableTensorView decay = take(a.shape);
  ops::kda_gate(context, a, weights.a_log.view(), weights.dt_bias.view(), std::nullopt, decay);
  const MutableTensorView o = take(v.shape);
  ops::delta_rule(context, shape, q_conv, k_conv, v_conv, decay, beta, state, o);
  const MutableTensorView gated = take(o.shape);
  ops::gated_rms_norm(context, o, weights.norm.view(), config_.rms_norm_eps, z, gated, config_.output_gate);
  ops::linear(context, gated, weights.out_proj, y);
  context.comm->all_reduce(y);
}

void QwenStage::gqa(ops::Context& context, const StepTables& step, const StepTables::Layer& tables, const GqaWeights& weights,
                    TensorView x, MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const ops::GqaShape& shape = config_.attention;
  const int64_t rows = x.shape[0];
  const TensorView rotary{DType::f32, {rows, config_.rotary}, reinterpret_cast<const std::byte*>(step.rotary.data())};

  const MutableTensorView q = take({rows, config_.query_width()});
  const MutableTensorView gate = take(q.shape);
  ops::split_groups(context, linear(context, x, weights.q_proj), config_.query_slabs(), std::array{q, gate});
  const auto positioned = [&](MutableTensorView raw, const Tensor& weight, int64_t heads) {
    const MutableTensorView normed = take(raw.shape);
    norm(context, by_head(raw, shape.size), weight, by_head(normed, shape.size));
    ops::rotate(context, {heads, shape.size}, config_.rotary, normed, rotary, normed);
    return normed;
  };
  const MutableTensorView query = positioned(q, weights.q_norm, shape.heads);
  const MutableTensorView key = positioned(linear(context, x, weights.k_proj), weights.k_norm, shape.kv_heads);
  ops::gqa_append(context, shape, key, linear(context, x, weights.v_proj), tables.pages);

  const MutableTensorView attended = take(q.shape);
  ops::gqa_attention(context, shape, query, tables.pages, attended);
  const MutableTensorView gated = take(q.shape);
  ops::sigmoid_gate(context, attended, gate, gated);
  ops::linear(context, gated, weights.o_proj, y);
  context.comm->all_reduce(y);
}

void QwenStage::moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace());
  const MutableTensorView sum = routed(context, batch, layer, weights.gate, TensorView(), x, x);
  const MutableTensorView shared = take(y.shape);
  mlp(context, weights.shared, x, shared);
  const MutableTensorView gated = take(y.shape);
  ops::sigmoid_gate(context, shared, linear(context, x, weights.shared_gate), gated);
  ops::add(context, sum, gated, y);
}

TensorView QwenStage::head_input(ops::Context& context, const Batch& batch, const Residual& rows) {
  const LayerIndex last_layer = layers().end - LayerIndex(1);
  const TensorView x = rows.hidden->view();
  trace(batch, TracePoint::mixed, last_layer, x);
  const MutableTensorView normed = take(x.shape);
  norm(context, x, final_norm_, normed);
  trace(batch, TracePoint::final_norm, last_layer, normed);
  return normed;
}

}  // namespace

std::unique_ptr<Stage> make_qwen_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options) {
  return std::make_unique<QwenStage>(std::move(checkpoint), options);
}

}  // namespace weft
