#include "model/families/kimi.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/fault.h"
#include "model/decode_cost.h"
#include "model/expert_store.h"
#include "model/fingerprint.h"
#include "model/finite_watch.h"
#include "model/gpu_memory.h"
#include "model/routing.h"
#include "model/step_buffer.h"
#include "model/trunk.h"
#include "model/weight_placer.h"
#include "ops/ops.h"
#include "parallel/communicator.h"
#include "tensor/workspace.h"

namespace weft {
namespace {

using ops::WeightView;

constexpr int64_t kMostGpuRows = 65535;  // of a CUDA grid's second and third axis
// Of a GPU's pool: for more states, rows or rows of logits than planned, and the tables of steps.
constexpr ByteCount kGpuReserve(4LL << 30);
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
  WeightView kv_b_proj;           // [Hm*(dn+dv), rc]
  WeightView g_proj;              // [Hm*dv, D], with the output gate
  WeightView o_proj;              // [D, Hm*dv]
};

struct MlpWeights {
  WeightView gate_proj, up_proj;  // [F, D]
  WeightView down_proj;           // [D, F]
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
  Tensor output_mix;   // [D]
  Tensor norm;         // [D]
  WeightView lm_head;  // [V, D]
};

StateLayout state_layout(const KimiConfig& config, LayerRange layers) {
  StateLayout layout(layers);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    if (config.is_kda[static_cast<size_t>(layer.value)]) {
      const Shape history{config.conv_kernel - 1, config.kda_width()};
      layout.add_slot_layer(layer, {{"S", {config.kda_heads, config.kda_head_dim, config.kda_head_dim}},
                                    {"conv_q", history},
                                    {"conv_k", history},
                                    {"conv_v", history}});
    } else {
      layout.add_page_layer(layer, {{"latent", config.mla.latent}, {"pe", config.mla.rope}});
    }
  }
  return layout;
}

// Reads the weights of one layer from the checkpoint, and puts them where the stage computes.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, WeightPlacer placer)
      : checkpoint_(checkpoint), config_(checkpoint.config()), placer_(std::move(placer)) {}

  LayerWeights layer(LayerIndex layer) const {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    LayerWeights weights;
    weights.input_norm = vector(prefix + "input_layernorm.weight");
    weights.post_norm = vector(prefix + "post_attention_layernorm.weight");
    if (config_.residual_block) {
      weights.attention_mix = mix(prefix + "self_attention_res");
      weights.mlp_mix = mix(prefix + "mlp_res");
    }
    if (config_.is_kda[static_cast<size_t>(layer.value)]) {
      weights.attention = kda(layer, prefix + "self_attn.");
    } else {
      weights.attention = mla(prefix + "self_attn.");
    }
    if (config_.is_moe(layer)) {
      weights.mlp = moe(prefix + "block_sparse_moe.");
    } else {
      weights.mlp = mlp(prefix + "mlp.");
    }
    return weights;
  }

  // `first_embedding`: what the stage has of it, null on a stage that begins later.
  HeadWeights head(const WeightView* first_embedding) const {
    HeadWeights weights;
    if (config_.residual_block) weights.output_mix = mix("model.output_attn_res");
    weights.norm = vector("model.norm.weight");
    const auto tied = [&] { return first_embedding != nullptr ? *first_embedding : embedding(); };
    weights.lm_head = config_.tie_word_embeddings ? tied() : matrix("lm_head.weight");
    return weights;
  }

  WeightView embedding() const { return matrix("model.embed_tokens.weight"); }

 private:
  WeightView matrix(const std::string& name) const { return placer_.place(checkpoint_.weight(name)); }
  Tensor vector(const std::string& name) const { return placer_.place(checkpoint_.vector_f32(name)); }

  // w = norm.weight * proj.weight in float32, an exact load-time fusion (K3 spec 2.5).
  Tensor mix(const std::string& stem) const {
    Tensor product = checkpoint_.vector_f32(stem + "_norm.weight");
    const Tensor proj = checkpoint_.vector_f32(stem + "_proj.weight");
    const std::span<float> values = product.as<float>();
    for (size_t i = 0; i < values.size(); ++i) values[i] *= proj.as<float>()[i];
    return placer_.place(std::move(product));
  }

  KdaWeights kda(LayerIndex layer, const std::string& prefix) const {
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
    weights.a_log = placer_.place(checkpoint_.a_log(layer));
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
    weights.kv_b_proj = matrix(prefix + "kv_b_proj.weight");
    if (config_.mla_output_gate) weights.g_proj = matrix(prefix + "g_proj.weight");
    weights.o_proj = matrix(prefix + "o_proj.weight");
    return weights;
  }

  MlpWeights mlp(const std::string& prefix) const {
    return {matrix(prefix + "gate_proj.weight"), matrix(prefix + "up_proj.weight"), matrix(prefix + "down_proj.weight")};
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
    if (config_.shared_experts > 0) weights.shared = mlp(prefix + "shared_experts.");
    return weights;
  }

  const Checkpoint& checkpoint_;
  const KimiConfig& config_;
  WeightPlacer placer_;
};

// The residual stream of one step: the frozen blocks, which are shared with the boundary, and the running sum.
struct Residual {
  std::vector<std::shared_ptr<const Tensor>> blocks;
  std::shared_ptr<Tensor> hidden;  // [T, D]
};

// The tables of one step, where operators find them (StepBuffer).
struct StepTables {
  struct Layer {
    std::array<std::span<const ops::StateSegment>, 4> slots;  // of each slot tensor
    std::span<const ops::PagedSegment> pages;
  };
  std::span<const int32_t> ids;
  std::span<const int64_t> logits_rows;
  std::vector<Layer> layers;  // of the stage
};

// What the layers leave, on the stage's device.
struct StepResult {
  Residual residual;  // all stages but the last
  Tensor logits;      // last stage
};

// Steps of one shape run the same work on the same addresses of a GPU: recorded when the shape is seen for the second time (the
// first run takes the workspace and loads the kernels), then replayed.
struct RecordedStep {
  std::unique_ptr<DeviceGraph> graph;
  MutableTensorView result;  // logits
};

// What recorded work depends on: rows, row groups, segments, rows of logits. Lengths of block tables may differ.
using StepShape = std::array<int64_t, 4>;

class KimiStage final : public Stage {
 public:
  KimiStage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options)
      : checkpoint_(std::move(checkpoint)),
        config_(checkpoint_->config()),
        layers_(options.layers),
        profile_(options.profile),
        device_(options.device),
        pool_(
            state_layout(config_, layers_), [this] { return model_fingerprint(*checkpoint_, profile_); }, options.state,
            device_),
        gpu_workspace_(device_->is_host() ? GpuWorkspace() : gpu_workspace(config_, layers_, options.step_rows)),
        workspace_(*device_, ByteCount(gpu_workspace_.layers)),
        residual_memory_(*device_, ByteCount(gpu_workspace_.residual)),
        tables_(*device_),
        watch_(*device_) {
    checkpoint_->require(layers_);
    if (!device_->is_host()) {
      gpu_planned_ = {gpu_weight_bytes(*checkpoint_, layers_), options.state_memory, ByteCount(gpu_workspace_.total())};
      device_->reserve(gpu_planned_.total() + kGpuReserve);
    }
    const WeightPlacer placer(device_, options.dummy_weights);
    if (device_->is_host()) {
      experts_ = std::make_unique<MappedExperts>(checkpoint_, options.expert_budget);
    } else {
      experts_ = std::make_unique<ResidentExperts>(checkpoint_, placer);
    }
    const Binder binder(*checkpoint_, placer);
    if (first()) embedding_ = binder.embedding();
    if (last()) head_ = binder.head(first() ? &embedding_ : nullptr);
    for (LayerIndex layer = layers_.begin; layer < layers_.end; ++layer) {
      weights_.push_back(binder.layer(layer));
      if (config_.is_moe(layer)) experts_->add_layer(layer, config_.experts);
    }
    checkpoint_->require_intact();  // what was copied to a GPU too
    if (!device_->is_host()) gpu_weights_ = device_->taken();
  }

  [[nodiscard]] LayerRange layers() const override { return layers_; }
  [[nodiscard]] int64_t layer_count() const override { return config_.layer_count; }
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] int64_t hidden_size() const override { return config_.hidden_size; }
  [[nodiscard]] StatePool& states() override { return pool_; }
  [[nodiscard]] Device& device() override { return *device_; }
  [[nodiscard]] ByteCount bytes_per_token() const override { return decode_bytes_per_token(*checkpoint_, layers_); }
  [[nodiscard]] MemoryUse memory() const override {
    MemoryUse use{trunk_bytes(*checkpoint_, layers_), experts_->bytes(), pool_.bytes_allocated(),
                  workspace_.bytes_allocated() + residual_bytes_};
    if (!device_->is_host()) {
      use.gpu_planned = gpu_planned_;
      use.gpu_used = {gpu_weights_, pool_.bytes_allocated(), workspace_.most_used() + residual_memory_.most_used()};
    }
    return use;
  }
  [[nodiscard]] ByteCount operator_memory() const override { return ByteCount(gpu_workspace_.operators); }

  [[nodiscard]] int64_t replayed_steps() const override { return replayed_steps_; }

  [[nodiscard]] Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) override;
  void settle(const Batch& batch) override { watch_.settle(batch); }

 private:
  void check(const ops::Context& context, const Batch& batch, const std::optional<Boundary>& in) const;
  [[nodiscard]] StepTables step_tables(const Batch& batch);
  // The incoming boundary in the stage's memory; without one, memory for the embedding.
  [[nodiscard]] Residual start(const Batch& batch, std::optional<Boundary> in);
  [[nodiscard]] StepResult compute(ops::Context& context, const Batch& batch, const StepTables& tables, Residual residual);
  [[nodiscard]] StepResult compute_recorded(ops::Context& context, const Batch& batch, const StepTables& tables,
                                            Residual residual);
  void run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer, Residual& residual);
  // Input of a sub-layer: the mix, or the running sum where there are no residual blocks.
  TensorView mixed(ops::Context& context, const Residual& residual, const Tensor& mix_weight);
  void kda(ops::Context& context, const StepTables::Layer& tables, const KdaWeights& weights, TensorView x,
           MutableTensorView y);
  void mla(ops::Context& context, const StepTables::Layer& tables, const MlaWeights& weights, TensorView x,
           MutableTensorView y);
  void mlp(ops::Context& context, const MlpWeights& weights, TensorView x, MutableTensorView y);
  void moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
           MutableTensorView y);
  [[nodiscard]] std::vector<ops::StateSegment> slot_segments(const Batch& batch, const SlotTensor& tensor);
  [[nodiscard]] Tensor logits(ops::Context& context, const Batch& batch, const StepTables& tables, const Residual& residual);
  void trace(const Batch& batch, TracePoint point, LayerIndex layer, TensorView rows);

  MutableTensorView take(const Shape& shape) { return workspace_.take(shape); }
  // A tensor that outlives the layer: on the host it owns its memory; on a GPU it lasts until the next step.
  Tensor step_tensor(const Shape& shape) {
    if (device_->is_host()) return Tensor::uninitialized(DType::f32, shape);
    return Tensor::borrowed(residual_memory_.take(shape));
  }
  std::shared_ptr<Tensor> copy_of(TensorView rows) {
    auto made = std::make_shared<Tensor>(step_tensor(rows.shape));
    device_->copy(made->data(), rows.data, rows.bytes());
    return made;
  }
  MutableTensorView linear(ops::Context& context, TensorView x, const WeightView& weight, bool keep_f32 = false) {
    const MutableTensorView y = take({x.shape[0], weight.out});
    ops::linear(context, x, weight, y, keep_f32);
    return y;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  const KimiConfig& config_;
  LayerRange layers_;
  ops::Profile profile_;
  std::shared_ptr<Device> device_;
  StatePool pool_;
  std::unique_ptr<ExpertStore> experts_;
  WeightView embedding_;  // [V, D], first stage
  HeadWeights head_;      // last stage
  std::vector<LayerWeights> weights_;
  GpuWorkspace gpu_workspace_;  // planned; zero in host memory, as the next two
  GpuMemory gpu_planned_;
  ByteCount gpu_weights_;  // taken
  Workspace workspace_;
  Workspace residual_memory_;  // GPU: of step_tensor()
  StepBuffer tables_;
  FiniteWatch watch_;
  int64_t replayed_steps_ = 0;
  std::map<StepShape, RecordedStep> recorded_;  // GPU
  const std::byte* recorded_tables_ = nullptr;  // where their tables lie
  ByteCount residual_bytes_;                    // of the residual stream and logits, the most of a step so far
};

void KimiStage::trace(const Batch& batch, TracePoint point, LayerIndex layer, TensorView rows) {
  if (batch.trace == nullptr) return;
  if (device_->is_host()) return batch.trace->record(point, layer, rows);
  batch.trace->record(point, layer, device_->fetch(rows).view());
}

void KimiStage::check(const ops::Context& context, const Batch& batch, const std::optional<Boundary>& in) const {
  constexpr std::string_view kPlace = "stage";
  if (context.profile != profile_) {
    fail(ErrorKind::internal, kPlace, "wanted profile {}, found {}", ops::to_string(profile_), ops::to_string(context.profile));
  }
  if (context.on_gpu() == device_->is_host() || (context.on_gpu() && context.device != device_.get())) {
    fail(ErrorKind::internal, kPlace, "wanted a context for the stage's device, found back end {}",
         ops::to_string(context.backend));
  }
  if (batch.rows() == 0) fail(ErrorKind::internal, kPlace, "wanted at least one row, found an empty batch");
  if (context.on_gpu() && batch.rows() > kMostGpuRows) {
    fail(ErrorKind::bad_input, kPlace, "wanted at most {} rows in a step on a GPU, found {}", kMostGpuRows, batch.rows());
  }
  int64_t rows = 0;
  for (const RowGroup& group : batch.groups) {
    if (group.first_row != rows || group.row_count <= 0) {
      fail(ErrorKind::internal, kPlace, "wanted row groups that cover the batch in order, found one of {} rows at row {}",
           group.row_count, group.first_row);
    }
    rows += group.row_count;
  }
  if (rows != batch.rows()) fail(ErrorKind::internal, kPlace, "wanted groups over {} rows, found {}", batch.rows(), rows);
  for (size_t row = 0; row < batch.ids.size(); ++row) {
    const int32_t id = batch.ids[row];
    if (id < 0 || id >= config_.vocab_size) {
      fail(ErrorKind::bad_input, "token ids", "row {}: wanted an id in [0, {}), found {}", row, config_.vocab_size, id);
    }
  }
  for (const int64_t row : batch.logits_rows) {
    if (row < 0 || row >= rows) fail(ErrorKind::internal, kPlace, "wanted logits rows in [0, {}), found {}", rows, row);
  }
  if (in.has_value() == first()) {
    fail(ErrorKind::internal, kPlace, "layers [{}, {}): wanted {} boundary", layers_.begin, layers_.end, first() ? "no" : "a");
  }
  if (!in) return;
  const int64_t blocks = config_.blocks_before(layers_.begin);
  const bool sealed = config_.residual_block && layers_.begin.value % *config_.residual_block == 0;
  const Shape plane{rows, config_.hidden_size};
  const bool same_shapes = in->hidden->shape() == plane &&
                           std::ranges::all_of(in->blocks, [&](const auto& block) { return block->shape() == plane; });
  if (in->layer != layers_.begin || static_cast<int64_t>(in->blocks.size()) != blocks || in->sealed != sealed || !same_shapes) {
    fail(ErrorKind::bad_input, "boundary",
         "before layer {}: wanted {} blocks of {} and sealed = {}, found {} blocks, hidden {}, sealed = {}, for layer {}",
         layers_.begin, blocks, plane, sealed, in->blocks.size(), in->hidden->shape(), in->sealed, in->layer);
  }
}

StepTables KimiStage::step_tables(const Batch& batch) {
  int64_t segments = 0;
  int64_t pages = 0;
  for (const RowGroup& group : batch.groups) {
    segments += 1 + static_cast<int64_t>(group.checkpoints.size());
    pages += static_cast<int64_t>(group.pages.size());
  }
  const int64_t layers = layers_.size();
  const int64_t layer_bytes = 4 * segments * static_cast<int64_t>(sizeof(ops::StateSegment)) +
                              batch.groups.size() * sizeof(ops::PagedSegment) + pages * static_cast<int64_t>(sizeof(float*));
  tables_.begin(batch.rows() * 4 + static_cast<int64_t>(batch.logits_rows.size()) * 8 + layers * layer_bytes,
                2 + layers * (4 + static_cast<int64_t>(batch.groups.size())));
  StepTables tables;
  tables.ids = tables_.add(batch.ids);
  tables.logits_rows = tables_.add(batch.logits_rows);
  std::vector<std::span<ops::PagedSegment>> paged;
  for (const LayerState& state : pool_.layout().states()) {
    StepTables::Layer& layer = tables.layers.emplace_back();
    for (size_t i = 0; i < state.slot.size(); ++i) layer.slots[i] = tables_.add(slot_segments(batch, state.slot[i]));
    const StepTable<ops::PagedSegment> table = tables_.place<ops::PagedSegment>(state.page.empty() ? 0 : batch.groups.size());
    layer.pages = table.there;
    paged.push_back(table.here);
  }
  // Block tables come last: their sizes grow from step to step, and move nothing else.
  for (size_t i = 0; i < paged.size(); ++i) {
    for (size_t g = 0; g < paged[i].size(); ++g) {
      const RowGroup& group = batch.groups[g];
      const StepTable<float*> table = tables_.place<float*>(group.pages.size());
      for (size_t p = 0; p < group.pages.size(); ++p) {
        table.here[p] = pool_.data(group.pages[p]) + pool_.layout().states()[i].page_offset;
      }
      paged[i][g] = {group.first_row, group.row_count, group.start.value, table.there};
    }
  }
  tables_.send();
  return tables;
}

Residual KimiStage::start(const Batch& batch, std::optional<Boundary> in) {
  Residual residual;
  residual.hidden = std::make_shared<Tensor>(step_tensor({batch.rows(), config_.hidden_size}));
  if (!in) return residual;
  device_->upload(residual.hidden->data(), in->hidden->view().data, in->hidden->bytes());
  if (device_->is_host()) {
    residual.blocks = std::move(in->blocks);
    return residual;
  }
  for (const auto& block : in->blocks) {
    auto there = std::make_shared<Tensor>(step_tensor(block->shape()));
    device_->upload(there->data(), block->view().data, block->bytes());
    residual.blocks.push_back(std::move(there));
  }
  return residual;
}

Stage::Output KimiStage::forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) {
  check(context, batch, in);
  const Workspace::Scope scope(workspace_);
  const Workspace::Scope residual_scope(residual_memory_);
  const StepTables tables = step_tables(batch);
  Residual residual = start(batch, std::move(in));
  StepResult result = compute_recorded(context, batch, tables, std::move(residual));

  Output output;
  if (last()) {
    output.logits = std::move(result.logits);
  } else {
    if (!device_->is_host()) {
      settle(batch);
      result.residual.hidden = std::make_shared<Tensor>(device_->fetch(result.residual.hidden->view()));
      for (auto& block : result.residual.blocks) block = std::make_shared<const Tensor>(device_->fetch(block->view()));
    }
    const bool sealed = config_.residual_block && layers_.end.value % *config_.residual_block == 0;
    output.boundary = Boundary{layers_.end, std::move(result.residual.hidden), std::move(result.residual.blocks), sealed};
  }
  checkpoint_->require_intact();
  return output;
}

StepResult KimiStage::compute_recorded(ops::Context& context, const Batch& batch, const StepTables& tables, Residual residual) {
  constexpr int64_t kMostRows = 64;  // longer steps gain little and come in many shapes
  if (device_->is_host() || batch.trace != nullptr || batch.routing != nullptr || batch.rows() > kMostRows ||
      !(first() && last())) {
    return compute(context, batch, tables, std::move(residual));
  }
  if (recorded_tables_ != tables_.address()) {
    recorded_.clear();
    recorded_tables_ = tables_.address();
  }
  int64_t segments = 0;
  for (const RowGroup& group : batch.groups) segments += 1 + static_cast<int64_t>(group.checkpoints.size());
  const auto [at, is_new] =
      recorded_.try_emplace({batch.rows(), std::ssize(batch.groups), segments, std::ssize(batch.logits_rows)});
  if (is_new) return compute(context, batch, tables, std::move(residual));
  RecordedStep& step = at->second;
  if (step.graph == nullptr) {
    step.graph =
        device_->record([&] { step.result = compute(context, batch, tables, std::move(residual)).logits.mutable_view(); });
  }
  step.graph->launch();
  ++replayed_steps_;
  return {{}, Tensor::borrowed(step.result)};
}

StepResult KimiStage::compute(ops::Context& context, const Batch& batch, const StepTables& tables, Residual residual) {
  watch_.begin();
  if (first()) {
    ops::embed(context, tables.ids, embedding_, residual.hidden->mutable_view());
    trace(batch, TracePoint::embed, LayerIndex(0), residual.hidden->view());
  }
  for (LayerIndex layer = layers_.begin; layer < layers_.end; ++layer) {
    try {
      run_layer(context, batch, tables, layer, residual);
    } catch (const Error& error) {
      throw Error(error.kind(), "stage", fmt::format("layer {}: {}", layer, error.what()));
    }
  }
  watch_.end();
  const int64_t planes = std::ssize(residual.blocks) + 2;  // the running sum is there twice while it grows
  const int64_t logits_floats = std::ssize(batch.logits_rows) * (config_.vocab_size + planes * config_.hidden_size);
  const int64_t floats = planes * batch.rows() * config_.hidden_size + (last() ? logits_floats : 0);
  residual_bytes_ = std::max(residual_bytes_, ByteCount(floats * static_cast<int64_t>(sizeof(float))));
  if (!last()) return {std::move(residual), Tensor()};
  return {Residual(), logits(context, batch, tables, residual)};
}

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
  const auto index = static_cast<size_t>(layer.value - layers_.begin.value);
  const LayerWeights& weights = weights_[index];
  const Workspace::Scope scope(workspace_);
  const Shape rows{batch.rows(), config_.hidden_size};
  const MutableTensorView normed = take(rows);
  const MutableTensorView y = take(rows);
  const auto accumulate = [&] { ops::add(context, residual.hidden->view(), y, residual.hidden->mutable_view()); };

  const bool starts_block = config_.residual_block && layer.value % *config_.residual_block == 0;
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
  watch_.look(context, batch, layer, FiniteWatch::Place::attention, residual.hidden->view());

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
  watch_.look(context, batch, layer, FiniteWatch::Place::mlp, residual.hidden->view());
}

std::vector<ops::StateSegment> KimiStage::slot_segments(const Batch& batch, const SlotTensor& tensor) {
  const auto at = [&](SlotId slot) { return pool_.data(slot) + tensor.offset; };
  std::vector<ops::StateSegment> segments;
  for (const RowGroup& group : batch.groups) {
    const float* in = group.slot_in ? at(*group.slot_in) : nullptr;
    int64_t done = 0;
    for (const CheckpointSlot& checkpoint : group.checkpoints) {
      float* out = at(checkpoint.slot);
      segments.push_back({group.first_row + done, checkpoint.offset - done, in, out});
      done = checkpoint.offset;
      in = out;
    }
    segments.push_back({group.first_row + done, group.row_count - done, in, at(group.slot_out)});
  }
  return segments;
}

void KimiStage::kda(ops::Context& context, const StepTables::Layer& tables, const KdaWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace_);
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
  const Workspace::Scope scope(workspace_);
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
  ops::mla_absorb_query(context, shape, q, weights.kv_b_proj, q_latent);
  const MutableTensorView attended = take({rows, shape.heads * shape.latent});
  ops::mla_attention(context, shape, q, q_latent, tables.pages, attended);
  MutableTensorView o = take({rows, shape.heads * shape.value});
  ops::mla_project_value(context, shape, attended, weights.kv_b_proj, o);
  if (config_.mla_output_gate) {
    const MutableTensorView gated = take(o.shape);
    ops::sigmoid_gate(context, o, linear(context, x, weights.g_proj), gated);
    o = gated;
  }
  ops::linear(context, o, weights.o_proj, y);
  context.comm->all_reduce(y);
}

void KimiStage::mlp(ops::Context& context, const MlpWeights& weights, TensorView x, MutableTensorView y) {
  const Workspace::Scope scope(workspace_);
  const MutableTensorView gate = linear(context, x, weights.gate_proj);
  const MutableTensorView up = linear(context, x, weights.up_proj);
  const MutableTensorView activated = take(gate.shape);
  ops::gated_activation(context, config_.activation, gate, up, activated);
  ops::linear(context, activated, weights.down_proj, y);
}

void KimiStage::moe(ops::Context& context, const Batch& batch, LayerIndex layer, const MoeWeights& weights, TensorView x,
                    MutableTensorView y) {
  const Workspace::Scope scope(workspace_);
  const int64_t rows = batch.rows();
  const int64_t chosen = config_.router.experts_per_token;

  const MutableTensorView scores = linear(context, x, weights.gate, /*keep_f32=*/true);
  const MutableTensorView ids = workspace_.take({rows, chosen}, DType::i32);
  const MutableTensorView combine = take({rows, chosen});
  const MutableTensorView margins = take({rows});
  const std::span<float> margin_values = batch.trace != nullptr ? margins.as<float>() : std::span<float>();
  try {
    ops::route(context, config_.router, scores, weights.bias.view(), ids, combine, margin_values);
  } catch (const Error& error) {
    // The operator does not know the layer.
    fail(error.kind(), fmt::format("layer {}", layer.value), "{}", error.what());
  }
  trace(batch, TracePoint::experts, layer, ids);
  trace(batch, TracePoint::expert_weights, layer, combine);
  trace(batch, TracePoint::router_margin, layer, margins);
  if (batch.routing != nullptr) {
    const LayerRouting forced = routing_of_rows(*batch.routing, layer, batch.groups, config_.experts, chosen);
    device_->upload(ids.data, forced.experts.view().data, forced.experts.bytes());
    device_->upload(combine.data, forced.weights.view().data, forced.weights.bytes());
  }

  const TensorView z = config_.latent_size ? TensorView(linear(context, x, weights.latent_down)) : x;
  const MutableTensorView routed = take({rows, config_.expert_width()});
  ops::moe(context, config_.activation, z, ids, combine, experts_->acquire(layer, ids.as<int32_t>()), routed);
  const MutableTensorView shared = take({rows, config_.hidden_size});
  if (config_.shared_experts > 0) {
    mlp(context, weights.shared, x, shared);
    context.comm->all_reduce(shared);
  }
  // The norm acts on the complete sum over experts, so ranks are summed first (K3 spec 6).
  context.comm->all_reduce(routed);

  MutableTensorView result = routed;
  if (config_.latent_size) {
    if (config_.latent_norm) {
      result = take(routed.shape);
      ops::rms_norm(context, routed, weights.latent_norm.view(), config_.rms_norm_eps, result);
    }
    result = linear(context, result, weights.latent_up);
  }
  if (config_.shared_experts > 0) {
    ops::add(context, result, shared, y);
  } else {
    device_->copy(y.data, result.data, y.bytes());
  }
}

Tensor KimiStage::logits(ops::Context& context, const Batch& batch, const StepTables& tables, const Residual& residual) {
  const auto wanted = static_cast<int64_t>(batch.logits_rows.size());
  Tensor result = step_tensor({wanted, config_.vocab_size});
  if (wanted == 0) return result;
  const Shape shape{wanted, config_.hidden_size};
  const auto gathered = [&](const Tensor& rows) {
    auto out = std::make_shared<Tensor>(step_tensor(shape));
    ops::gather_rows(context, rows.view(), tables.logits_rows, out->mutable_view());
    return out;
  };
  Residual wanted_rows;
  for (const auto& block : residual.blocks) wanted_rows.blocks.push_back(gathered(*block));
  wanted_rows.hidden = gathered(*residual.hidden);

  const LayerIndex last_layer = layers_.end - LayerIndex(1);
  const TensorView x =
      on(Fault::output_mix_skipped) ? wanted_rows.hidden->view() : mixed(context, wanted_rows, head_.output_mix);
  trace(batch, TracePoint::mixed, last_layer, x);
  const MutableTensorView normed = take(shape);
  ops::rms_norm(context, x, head_.norm.view(), config_.rms_norm_eps, normed);
  trace(batch, TracePoint::final_norm, last_layer, normed);
  ops::linear(context, normed, head_.lm_head, result.mutable_view());
  return result;
}

}  // namespace

std::unique_ptr<Stage> make_kimi_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options) {
  return std::make_unique<KimiStage>(std::move(checkpoint), options);
}

std::unique_ptr<Stage> make_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options) {
  return make_kimi_stage(std::move(checkpoint), options);
}

}  // namespace weft
