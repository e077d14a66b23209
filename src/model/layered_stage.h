// What the stages of all families share: the step from a batch to a boundary or to logits, with its tables, its recorded
// replays on a GPU, the residual stream and the parts of a layer that have no family. A family binds its weights and runs its
// layers:
//
//     class QwenStage final : public LayeredStage {
//      public:
//       QwenStage(checkpoint, options) : LayeredStage(checkpoint, options) { ...bind...; bound(); }
//      private:
//       void run_layer(ops::Context&, const Batch&, const StepTables&, LayerIndex, Residual&) override;
//       TensorView head_input(ops::Context&, const Batch&, const Residual&) override;
//     };
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/checkpoint.h"
#include "model/expert_store.h"
#include "model/finite_watch.h"
#include "model/gpu_memory.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "model/step_buffer.h"
#include "model/weight_placer.h"
#include "ops/ops.h"
#include "tensor/workspace.h"

namespace weft {

// Reads weights from the checkpoint and puts them where the stage computes.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, WeightPlacer placer) : checkpoint_(checkpoint), placer_(std::move(placer)) {}

  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] Tensor place(Tensor tensor) const { return placer_.place(std::move(tensor)); }
  // A quantized matrix is checked first (Checkpoint::check_matrix).
  [[nodiscard]] ops::WeightView matrix(const std::string& name) const {
    if (!placer_.dummy()) checkpoint_.check_matrix(name);
    return placer_.place(checkpoint_.weight(name));
  }
  [[nodiscard]] Tensor vector(const std::string& name) const { return place(checkpoint_.vector_f32(name)); }

 private:
  const Checkpoint& checkpoint_;
  WeightPlacer placer_;
};

// A gated MLP.
struct MlpWeights {
  ops::WeightView gate_proj, up_proj;  // [F, D]
  ops::WeightView down_proj;           // [D, F]
};
[[nodiscard]] MlpWeights bind_mlp(const Binder& binder, const std::string& prefix);  // prefix + "gate_proj.weight", ...

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
  std::span<const float> rotary;  // [T, R], of families that rotate
  std::vector<Layer> layers;      // of the stage
};

class LayeredStage : public Stage {
 public:
  [[nodiscard]] LayerRange layers() const override { return layers_; }
  [[nodiscard]] int64_t layer_count() const override { return config_.layer_count; }
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] int64_t hidden_size() const override { return config_.hidden_size; }
  [[nodiscard]] StatePool& states() override { return pool_; }
  [[nodiscard]] Device& device() override { return *device_; }
  [[nodiscard]] ByteCount bytes_per_token() const override;
  [[nodiscard]] MemoryUse memory() const override;
  [[nodiscard]] ByteCount operator_memory() const override { return ByteCount(gpu_workspace_.operators); }
  [[nodiscard]] int64_t replayed_steps() const override { return replayed_steps_; }

  [[nodiscard]] Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) override;
  void settle(const Batch& batch) override { watch_.settle(batch); }

 protected:
  // Checks that the checkpoint has the stage's tensors and reserves a GPU's memory; binds embedding and output matrix.
  LayeredStage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options);

  // Called by the family when its weights are bound.
  void bound();

  // Adds layer `layer` to the residual stream.
  virtual void run_layer(ops::Context& context, const Batch& batch, const StepTables& tables, LayerIndex layer,
                         Residual& residual) = 0;
  // Rows that want logits -> input [R, D] of the output matrix: the final norm, and what comes before it.
  virtual TensorView head_input(ops::Context& context, const Batch& batch, const Residual& rows) = 0;
  // Floats a row of StepTables::rotary, and the table itself for rows at `positions`.
  [[nodiscard]] virtual int64_t rotary_floats() const { return 0; }
  virtual void fill_rotary(std::span<const int64_t> positions, std::span<float> table) const {
    (void)positions;
    (void)table;
  }

  // y [T, D] of a gated MLP.
  void mlp(ops::Context& context, const MlpWeights& weights, TensorView x, MutableTensorView y);
  // The sum over the chosen experts [T, Z] of z [T, Z], chosen by the scores of x [T, D]; `bias` may be empty. In workspace.
  [[nodiscard]] MutableTensorView routed(ops::Context& context, const Batch& batch, LayerIndex layer,
                                         const ops::WeightView& gate, TensorView bias, TensorView x, TensorView z);
  void trace(const Batch& batch, TracePoint point, LayerIndex layer, TensorView rows);
  void look(ops::Context& context, const Batch& batch, LayerIndex layer, FiniteWatch::Place place, const Residual& residual) {
    watch_.look(context, batch, layer, place, residual.hidden->view());
  }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }
  [[nodiscard]] const Binder& binder() const { return binder_; }
  [[nodiscard]] Workspace& workspace() { return workspace_; }
  MutableTensorView take(const Shape& shape) { return workspace_.take(shape); }
  std::shared_ptr<Tensor> copy_of(TensorView rows);
  MutableTensorView linear(ops::Context& context, TensorView x, const ops::WeightView& weight, bool keep_f32 = false);
  [[nodiscard]] size_t index_of(LayerIndex layer) const { return static_cast<size_t>(layer.value - layers_.begin.value); }

 private:
  // What the layers leave, on the stage's device.
  struct StepResult {
    Residual residual;  // all stages but the last
    Tensor logits;      // last stage
  };
  // Steps of one shape run the same work on the same addresses of a GPU: recorded when the shape is seen for the second time
  // (the first run takes the workspace and loads the kernels), then replayed.
  struct RecordedStep {
    std::unique_ptr<DeviceGraph> graph;
    MutableTensorView result;  // logits
  };
  // What recorded work depends on: rows, row groups, segments, rows of logits. Lengths of block tables may differ.
  using StepShape = std::array<int64_t, 4>;

  void check(const ops::Context& context, const Batch& batch, const std::optional<Boundary>& in) const;
  [[nodiscard]] StepTables step_tables(const Batch& batch);
  [[nodiscard]] std::vector<ops::StateSegment> slot_segments(const Batch& batch, const SlotTensor& tensor);
  // The incoming boundary in the stage's memory; without one, memory for the embedding.
  [[nodiscard]] Residual start(const Batch& batch, std::optional<Boundary> in);
  [[nodiscard]] StepResult compute(ops::Context& context, const Batch& batch, const StepTables& tables, Residual residual);
  [[nodiscard]] StepResult compute_recorded(ops::Context& context, const Batch& batch, const StepTables& tables,
                                            Residual residual);
  [[nodiscard]] Tensor logits(ops::Context& context, const Batch& batch, const StepTables& tables, const Residual& residual);
  // A tensor that outlives the layer: on the host it owns its memory; on a GPU it lasts until the next step.
  [[nodiscard]] Tensor step_tensor(const Shape& shape);

  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelConfig& config_;
  LayerRange layers_;
  ops::Profile profile_;
  std::shared_ptr<Device> device_;
  StatePool pool_;
  GpuWorkspace gpu_workspace_;  // planned; zero in host memory, as the next two
  GpuMemory gpu_planned_;
  ByteCount gpu_weights_;  // taken
  Workspace workspace_;
  Workspace residual_memory_;  // GPU: of step_tensor()
  StepBuffer tables_;
  FiniteWatch watch_;
  Binder binder_;
  std::unique_ptr<ExpertStore> experts_;
  ops::WeightView embedding_;  // [V, D], first stage
  ops::WeightView lm_head_;    // [V, D], last stage
  int64_t replayed_steps_ = 0;
  std::map<StepShape, RecordedStep> recorded_;  // GPU
  const std::byte* recorded_tables_ = nullptr;  // where their tables lie
  ByteCount residual_bytes_;                    // of the residual stream and logits, the most of a step so far
};

}  // namespace weft
