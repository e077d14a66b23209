#include "model/layered_stage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/decode_cost.h"
#include "model/fingerprint.h"
#include "model/routing.h"
#include "model/trunk.h"
#include "parallel/communicator.h"

namespace weft {
namespace {

constexpr int64_t kMostGpuRows = 65535;  // of a CUDA grid's second and third axis
// Of a GPU's pool: for more states, rows or rows of logits than planned, and the tables of steps.
constexpr ByteCount kGpuReserve(4LL << 30);

}  // namespace

MlpWeights bind_mlp(const Binder& binder, const std::string& prefix) {
  return {binder.matrix(prefix + "gate_proj.weight"), binder.matrix(prefix + "up_proj.weight"),
          binder.matrix(prefix + "down_proj.weight")};
}

LayeredStage::LayeredStage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options)
    : checkpoint_(std::move(checkpoint)),
      config_(checkpoint_->config()),
      layers_(options.layers),
      profile_(options.profile),
      device_(options.device),
      pool_(
          config_.state_layout(layers_),
          [this, given = options.fingerprint] { return given.empty() ? model_fingerprint(*checkpoint_, profile_) : given; },
          options.state, device_),
      gpu_workspace_(device_->is_host() ? GpuWorkspace() : gpu_workspace(config_, layers_, options.step_rows)),
      workspace_(*device_, ByteCount(gpu_workspace_.layers)),
      residual_memory_(*device_, ByteCount(gpu_workspace_.residual)),
      tables_(*device_),
      watch_(*device_),
      binder_(*checkpoint_, WeightPlacer(device_, options.dummy_weights)) {
  checkpoint_->require(layers_);
  if (checkpoint_->is_partial() && options.fingerprint.empty()) {
    fail(ErrorKind::internal, "stage",
         "layers [{}, {}): wanted the fingerprint of the whole model, of which only a part is open", layers_.begin,
         layers_.end);
  }
  if (!device_->is_host()) {
    gpu_planned_ = {gpu_weight_bytes(*checkpoint_, layers_), options.state_memory, ByteCount(gpu_workspace_.total())};
    device_->reserve(gpu_planned_.total() + kGpuReserve);
  }
  if (device_->is_host()) {
    experts_ = std::make_unique<MappedExperts>(checkpoint_, options.expert_budget);
  } else {
    experts_ = std::make_unique<ResidentExperts>(checkpoint_, WeightPlacer(device_, options.dummy_weights));
  }
  constexpr const char* kEmbedding = "model.embed_tokens.weight";
  if (first()) embedding_ = binder_.matrix(kEmbedding);
  if (last()) {
    const auto tied = [&] { return first() ? embedding_ : binder_.matrix(kEmbedding); };
    lm_head_ = config_.tie_word_embeddings ? tied() : binder_.matrix("lm_head.weight");
  }
}

void LayeredStage::bound() {
  for (LayerIndex layer = layers_.begin; layer < layers_.end; ++layer) {
    if (config_.is_moe(layer)) experts_->add_layer(layer, config_.experts);
  }
  checkpoint_->require_intact();  // what was copied to a GPU too
  if (!device_->is_host()) gpu_weights_ = device_->taken();
}

ByteCount LayeredStage::bytes_per_token() const { return decode_bytes_per_token(*checkpoint_, layers_); }

MemoryUse LayeredStage::memory() const {
  MemoryUse use{trunk_bytes(*checkpoint_, layers_), experts_->bytes(), pool_.bytes_allocated(),
                workspace_.bytes_allocated() + residual_bytes_};
  if (!device_->is_host()) {
    use.gpu_planned = gpu_planned_;
    use.gpu_used = {gpu_weights_, pool_.bytes_allocated(), workspace_.most_used() + residual_memory_.most_used()};
  }
  return use;
}

Tensor LayeredStage::step_tensor(const Shape& shape) {
  if (device_->is_host()) return Tensor::uninitialized(DType::f32, shape);
  return Tensor::borrowed(residual_memory_.take(shape));
}

std::shared_ptr<Tensor> LayeredStage::copy_of(TensorView rows) {
  auto made = std::make_shared<Tensor>(step_tensor(rows.shape));
  device_->copy(made->data(), rows.data, rows.bytes());
  return made;
}

MutableTensorView LayeredStage::linear(ops::Context& context, TensorView x, const ops::WeightView& weight, bool keep_f32) {
  const MutableTensorView y = take({x.shape[0], weight.out});
  ops::linear(context, x, weight, y, keep_f32);
  return y;
}

void LayeredStage::trace(const Batch& batch, TracePoint point, LayerIndex layer, TensorView rows) {
  if (batch.trace == nullptr) return;
  if (device_->is_host()) return batch.trace->record(point, layer, rows);
  batch.trace->record(point, layer, device_->fetch(rows).view());
}

void LayeredStage::check(const ops::Context& context, const Batch& batch, const std::optional<Boundary>& in) const {
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
    if (group.pool != &pool_) {
      const LayerRange of = group.pool != nullptr ? group.pool->layout().layers() : LayerRange();
      fail(ErrorKind::internal, kPlace, "wanted states of this stage's {} layers [{}, {}), found one of {} layers [{}, {})",
           layers_.size(), layers_.begin, layers_.end, of.size(), of.begin, of.end);
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
  const bool sealed = config_.starts_block(layers_.begin);
  const Shape plane{rows, config_.hidden_size};
  const bool same_shapes = in->hidden->shape() == plane &&
                           std::ranges::all_of(in->blocks, [&](const auto& block) { return block->shape() == plane; });
  if (in->layer != layers_.begin || static_cast<int64_t>(in->blocks.size()) != blocks || in->sealed != sealed || !same_shapes) {
    fail(ErrorKind::bad_input, "boundary",
         "before layer {}: wanted {} blocks of {} and sealed = {}, found {} blocks, hidden {}, sealed = {}, for layer {}",
         layers_.begin, blocks, plane, sealed, in->blocks.size(), in->hidden->shape(), in->sealed, in->layer);
  }
}

StepTables LayeredStage::step_tables(const Batch& batch) {
  int64_t segments = 0;
  int64_t pages = 0;
  for (const RowGroup& group : batch.groups) {
    segments += 1 + static_cast<int64_t>(group.checkpoints.size());
    pages += static_cast<int64_t>(group.pages.size());
  }
  const int64_t layers = layers_.size();
  const int64_t layer_bytes = 4 * segments * static_cast<int64_t>(sizeof(ops::StateSegment)) +
                              batch.groups.size() * sizeof(ops::PagedSegment) + pages * static_cast<int64_t>(sizeof(float*));
  const int64_t rotary = batch.rows() * rotary_floats();
  tables_.begin(batch.rows() * 4 + static_cast<int64_t>(batch.logits_rows.size()) * 8 +
                    rotary * static_cast<int64_t>(sizeof(float)) + layers * layer_bytes,
                3 + layers * (4 + static_cast<int64_t>(batch.groups.size())));
  StepTables tables;
  tables.ids = tables_.add(batch.ids);
  tables.logits_rows = tables_.add(batch.logits_rows);
  if (rotary > 0) {
    std::vector<int64_t> positions;
    for (const RowGroup& group : batch.groups) {
      for (int64_t row = 0; row < group.row_count; ++row) positions.push_back(group.start.value + row);
    }
    const StepTable<float> table = tables_.place<float>(static_cast<size_t>(rotary));
    fill_rotary(positions, table.here);
    tables.rotary = table.there;
  }
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

Residual LayeredStage::start(const Batch& batch, std::optional<Boundary> in) {
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

Stage::Output LayeredStage::forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) {
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
    const bool sealed = config_.starts_block(layers_.end);
    output.boundary = Boundary{layers_.end, std::move(result.residual.hidden), std::move(result.residual.blocks), sealed};
  }
  checkpoint_->require_intact();
  return output;
}

LayeredStage::StepResult LayeredStage::compute_recorded(ops::Context& context, const Batch& batch, const StepTables& tables,
                                                        Residual residual) {
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

LayeredStage::StepResult LayeredStage::compute(ops::Context& context, const Batch& batch, const StepTables& tables,
                                               Residual residual) {
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

std::vector<ops::StateSegment> LayeredStage::slot_segments(const Batch& batch, const SlotTensor& tensor) {
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

void LayeredStage::mlp(ops::Context& context, const MlpWeights& weights, TensorView x, MutableTensorView y) {
  const Workspace::Scope scope(workspace_);
  const MutableTensorView gate = linear(context, x, weights.gate_proj);
  const MutableTensorView up = linear(context, x, weights.up_proj);
  const MutableTensorView activated = take(gate.shape);
  ops::gated_activation(context, config_.activation, gate, up, activated);
  ops::linear(context, activated, weights.down_proj, y);
}

MutableTensorView LayeredStage::routed(ops::Context& context, const Batch& batch, LayerIndex layer, const ops::WeightView& gate,
                                       TensorView bias, TensorView x, TensorView z) {
  const int64_t rows = batch.rows();
  const int64_t chosen = config_.router.experts_per_token;
  const MutableTensorView out = take({rows, config_.expert_width()});
  const MutableTensorView scores = linear(context, x, gate, /*keep_f32=*/true);
  const MutableTensorView ids = workspace_.take({rows, chosen}, DType::i32);
  const MutableTensorView combine = take({rows, chosen});
  const MutableTensorView margins = take({rows});
  const std::span<float> margin_values = batch.trace != nullptr ? margins.as<float>() : std::span<float>();
  try {
    ops::route(context, config_.router, scores, bias, ids, combine, margin_values);
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
  ops::moe(context, config_.activation, z, ids, combine, experts_->acquire(layer, ids.as<int32_t>()), out);
  return out;
}

Tensor LayeredStage::logits(ops::Context& context, const Batch& batch, const StepTables& tables, const Residual& residual) {
  const auto wanted = static_cast<int64_t>(batch.logits_rows.size());
  Tensor result = step_tensor({wanted, config_.vocab_size});
  if (wanted == 0) return result;
  const auto gathered = [&](const Tensor& rows) {
    auto out = std::make_shared<Tensor>(step_tensor({wanted, config_.hidden_size}));
    ops::gather_rows(context, rows.view(), tables.logits_rows, out->mutable_view());
    return out;
  };
  Residual rows;
  for (const auto& block : residual.blocks) rows.blocks.push_back(gathered(*block));
  rows.hidden = gathered(*residual.hidden);
  ops::linear(context, head_input(context, batch, rows), lm_head_, result.mutable_view());
  return result;
}

}  // namespace weft
