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

// Elements of one row's activations that live at once, at most: projections of the mixer or of the MLP.
int64_t activation_width(const KimiConfig& c, LayerIndex l) {
  const int64_t mla = c.mla.heads * (c.mla.nope + c.mla.rope + 2 * c.mla.latent + 2 * c.mla.value) + c.mla.latent + c.mla.rope;
  const int64_t mixer = c.is_kda[static_cast<size_t>(l.value)] ? 7 * c.kda_width() : mla;
  const int64_t mlp =
      c.is_moe(l) ? c.experts + 2 * c.expert_width() + 3 * c.shared_experts * c.moe_intermediate_size : 3 * c.intermediate_size;
  return std::max(mixer, mlp);
}

PlanModel sizes(const KimiConfig& c, const std::vector<ParamSpec>& params, const BytesOf& bytes_of) {
  PlanModel model;
  model.hidden_size = c.hidden_size;
  model.tied = c.tie_word_embeddings;
  model.experts_per_token = c.router.experts_per_token;
  model.gpu_workspace = [c](LayerRange layers, int64_t rows) { return weft::gpu_workspace(c, layers, rows).total(); };
  for (int64_t l = 0; l < c.layer_count; ++l) {
    PlanModel::Layer layer;
    const bool kda = c.is_kda[static_cast<size_t>(l)];
    layer.kind = fmt::format("{} {}", kda ? "KDA" : "MLA", c.is_moe(LayerIndex(l)) ? "MoE" : "dense");
    if (kda) {
      layer.state_f32 = c.kda_heads * c.kda_head_dim * c.kda_head_dim * 4;
      layer.state_values = (c.conv_kernel - 1) * 3 * c.kda_width();
    } else {
      layer.token_values = c.mla.latent + c.mla.rope;
    }
    layer.width = activation_width(c, LayerIndex(l));
    layer.planes_before = c.blocks_before(LayerIndex(l)) + 1;
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
  PlanModel model = sizes(checkpoint.config(), checkpoint.params(), [&](const ParamSpec& p, int64_t e) {
    int64_t bytes = 0;
    for (const TensorId id : checkpoint.stored(p, e)) bytes += inventory.bytes(id);
    return bytes;
  });
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

PlanModel plan_model(const KimiConfig& config) {
  const bool packed = !config.quantization.is_null();
  PlanModel model = sizes(config, kimi_param_table(config), [&](const ParamSpec& p, int64_t) {
    const int64_t elements = p.shape.elements();
    return p.copies > 1 && packed ? elements / 2 + elements / 32 : elements * size_of(p.dtype);
  });
  model.estimated = true;
  return model;
}

}  // namespace weft
