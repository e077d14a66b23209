// The sizes that a plan works with, from a checkpoint's headers or from a configuration alone.
#include <algorithm>
#include <functional>
#include <set>

#include "model/gpu_memory.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

// Bytes of expert `e` of a row of the table, or of the whole row when it is no expert.
using BytesOf = std::function<int64_t(const ParamSpec& spec, int64_t e)>;

PlanModel sizes(const std::shared_ptr<const ModelConfig>& config, const std::vector<ParamSpec>& params,
                const BytesOf& bytes_of) {
  const ModelConfig& c = *config;
  PlanModel model;
  model.hidden_size = c.hidden_size;
  model.tied = c.tie_word_embeddings;
  model.experts_per_token = c.router.experts_per_token;
  model.gpu_workspace = [config](LayerRange layers, int64_t rows) {
    return weft::gpu_workspace(*config, layers, rows).total();
  };
  const StateLayout states = c.state_layout(c.all_layers());
  for (LayerIndex l(0); l < LayerIndex(c.layer_count); ++l) {
    PlanModel::Layer layer;
    layer.kind = c.kind(l);
    const LayerState& state = states.at(l);
    for (const SlotTensor& tensor : state.slot) {
      if (tensor.name == kRecurrentState) {
        layer.state_f32 += tensor.shape.elements() * 4;
      } else {
        layer.state_values += tensor.shape.elements();
      }
    }
    layer.token_values = state.page_width;
    layer.width = std::max(c.mixer_elements(l), c.mlp_elements(l));
    layer.planes_before = c.blocks_before(l) + 1;
    model.layers.push_back(std::move(layer));
  }
  for (const ParamSpec& p : params) {
    int64_t bytes = 0;
    int64_t on_gpu = 0;
    for (int64_t e = 0; e < p.copies; ++e) {
      const int64_t stored = bytes_of(p, e);
      bytes += stored;
      on_gpu += gpu_tensor_bytes(p, stored);
    }
    model.tensors += p.copies;
    switch (p.owner) {
      case Owner::first:
        model.embedding += bytes;
        model.gpu_embedding += on_gpu;
        model.embedding_read += bytes / p.shape[0];
        break;
      case Owner::last:
        model.head += bytes;
        model.gpu_head += on_gpu;
        if (!p.matrix) model.head_vectors += bytes;
        break;
      case Owner::layer: {
        PlanModel::Layer& layer = model.layers[static_cast<size_t>(p.layer.value)];
        layer.weights += bytes;
        layer.gpu_weights += on_gpu;
        if (p.copies > 1) {
          layer.experts += bytes;
          layer.expert += bytes / p.copies;
        }
        layer.read += p.copies > 1 ? bytes / p.copies * c.router.experts_per_token : bytes;
        break;
      }
    }
  }
  return model;
}

}  // namespace

PlanModel plan_model(const Checkpoint& checkpoint) {
  const Inventory& inventory = checkpoint.inventory();
  PlanModel model = sizes(checkpoint.shared_config(), checkpoint.params(),
                          [&](const ParamSpec& p, int64_t e) { return checkpoint.stored_bytes(p, e); });
  for (const InventoryFile& file : inventory.files()) model.shard_names.push_back(file.name);
  std::vector<std::set<int64_t>> shards(model.layers.size());
  std::set<int64_t> first;
  std::set<int64_t> last;
  for (const ParamSpec& p : checkpoint.params()) {
    std::set<int64_t>& of = p.owner == Owner::first  ? first
                            : p.owner == Owner::last ? last
                                                     : shards[static_cast<size_t>(p.layer.value)];
    for (int64_t e = 0; e < p.copies; ++e)
      for (const TensorId id : checkpoint.stored(p, e)) of.insert(inventory.file_index(id));
  }
  for (size_t l = 0; l < shards.size(); ++l) model.layers[l].shards.assign(shards[l].begin(), shards[l].end());
  model.first_shards.assign(first.begin(), first.end());
  model.last_shards.assign(last.begin(), last.end());
  return model;
}

PlanModel plan_model(const std::shared_ptr<const ModelConfig>& config) {
  const bool packed = !config->quantization.is_null();
  PlanModel model = sizes(config, config->params(), [&](const ParamSpec& p, int64_t) {
    const int64_t elements = p.shape.elements();
    return p.copies > 1 && packed ? elements / 2 + elements / 32 : elements * size_of(p.dtype);
  });
  model.estimated = true;
  return model;
}

}  // namespace weft
