#include "pipeline/layer_run.h"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/sequence_state.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "parallel/communicator.h"
#include "tensor/bf16.h"
#include "tensor/device.h"
#include "tensor/workspace.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "reference trace";

void check_sizes(const ModelConfig& config, const Trace& reference) {
  const auto tokens = static_cast<int64_t>(reference.ids.size());
  const Shape hidden{config.layer_count + 1, tokens, config.hidden_size};
  if (reference.hidden.shape() != hidden) {
    fail(ErrorKind::bad_input, kPlace, "hidden: wanted {} for this model, found {}", hidden, reference.hidden.shape());
  }
  const Shape logits{tokens, config.vocab_size};
  if (reference.logits.shape() != logits) {
    fail(ErrorKind::bad_input, kPlace, "logits: wanted {} for this model, found {}", logits, reference.logits.shape());
  }
}

// What the reference handed to layer `layer`. The block that layer b froze is the input of layer b.
Boundary boundary_before(const ModelConfig& config, LayerIndex layer, ops::Profile profile, const Trace& reference) {
  const auto input_of = [&](int64_t l) {
    const int64_t elements = reference.hidden.elements() / reference.hidden.shape()[0];
    const std::span<const float> values =
        reference.hidden.as<float>().subspan(static_cast<size_t>(l * elements), static_cast<size_t>(elements));
    Tensor rows = Tensor::copy_of({DType::f32,
                                   {reference.hidden.shape()[1], reference.hidden.shape()[2]},
                                   reinterpret_cast<const std::byte*>(values.data())});
    if (profile == ops::Profile::bf16) {
      for (float& value : rows.as<float>()) value = bf16_to_f32(f32_to_bf16(value));
    }
    return std::make_shared<const Tensor>(std::move(rows));
  };
  Boundary boundary;
  boundary.layer = layer;
  boundary.hidden = input_of(layer.value);
  for (int64_t block = 0; block < config.blocks_before(layer); ++block) {
    boundary.blocks.push_back(input_of(block * *config.residual_block));
  }
  boundary.sealed = config.residual_block && layer.value % *config.residual_block == 0;
  return boundary;
}

}  // namespace

Trace run_layers(const std::shared_ptr<const Checkpoint>& checkpoint, const LayerRunOptions& options, const Trace& reference) {
  const ModelConfig& config = checkpoint->config();
  check_sizes(config, reference);
  WorkerPool pool(options.threads);
  SingleRank single_rank;
  ops::Context context{.backend = options.backend, .profile = options.profile, .pool = &pool, .comm = &single_rank};
  TraceCollector collector(options.cancelled);
  Tensor logits;
  for (LayerIndex layer(0); layer < LayerIndex(config.layer_count); ++layer) {
    StageOptions stage_options;
    stage_options.layers = {layer, layer + LayerIndex(1)};
    stage_options.profile = options.profile;
    if (options.backend == ops::Backend::cuda) stage_options.device = open_cuda_device();
    const std::unique_ptr<Stage> stage = make_stage(checkpoint, stage_options);
    Workspace workspace(stage->device());
    context.device = &stage->device();
    context.workspace = &workspace;
    SequenceState state(stage->states());
    Batch batch;
    batch.ids = reference.ids;
    batch.groups.push_back(state.extend(0, batch.rows()));
    batch.trace = &collector;
    batch.routing = &reference.routing;
    if (stage->last()) {
      for (int64_t row = 0; row < batch.rows(); ++row) batch.logits_rows.push_back(row);
    }
    std::optional<Boundary> in;
    if (!stage->first()) in = boundary_before(config, layer, options.profile, reference);
    const Stage::Output output = stage->forward(context, batch, std::move(in));
    stage->settle(batch);
    if (stage->last()) logits = stage->device().fetch(output.logits.view());
    (void)state.commit();
  }
  return make_trace(reference.ids, config.layer_count, std::move(logits), collector);
}

}  // namespace weft
