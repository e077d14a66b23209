#include "model/gpu_memory.h"

#include <algorithm>

#include "formats/inventory.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "model/param_table.h"
#include "ops/attention_parts.h"
#include "ops/weight.h"

namespace weft {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignment = 256;           // of what is taken from a device
constexpr int64_t kSlack = 256 * kAlignment;  // of all tensors of a step
constexpr int64_t kGemmBytes = 32LL << 20;    // cuBLASLt's own workspace
constexpr int64_t kRowsAtOnce = 512;          // of the CUDA operator moe
constexpr int64_t kTableBytes = 1LL << 20;    // of a draw: masks, penalties
constexpr int64_t kExpertTable = sizeof(ops::ExpertView);

}  // namespace

int64_t gpu_tensor_bytes(const ParamSpec& spec, int64_t stored) {
  const bool matrix = spec.matrix || spec.copies > 1;
  const int64_t table = spec.copies > 1 ? kExpertTable : 0;
  return (matrix ? stored + kAlignment : spec.shape.elements() * kFloat) + kAlignment + table;
}

ByteCount gpu_weight_bytes(const Checkpoint& checkpoint, LayerRange layers) {
  int64_t sum = 0;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (!checkpoint.owns(layers, spec)) continue;
    for (int64_t e = 0; e < spec.copies; ++e) sum += gpu_tensor_bytes(spec, checkpoint.stored_bytes(spec, e));
  }
  return ByteCount(sum);
}

GpuWorkspace gpu_workspace(const ModelConfig& config, LayerRange layers, int64_t rows) {
  const int64_t hidden = config.hidden_size;
  const int64_t logits_rows = std::min(rows, kPlannedLogitsRows);
  const bool last = layers.end == LayerIndex(config.layer_count);
  int64_t width = 0;
  int64_t blocks = config.blocks_before(layers.begin);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    width = std::max({width, config.mixer_elements(layer), config.mlp_elements(layer)});
    if (config.starts_block(layer)) ++blocks;
  }
  GpuWorkspace made;
  // Norm, output and the two mixes of a layer; the mix and norm before the head.
  made.layers = kFloat * (rows * (4 * hidden + width) + 2 * logits_rows * hidden) + kSlack;
  made.residual = kFloat * rows * (blocks + 1) * hidden + kSlack;
  if (last) made.residual += kFloat * logits_rows * (config.vocab_size + (blocks + 1) * hidden);
  const int64_t gemm = kGemmBytes + 2 * rows * config.widest_input();
  const int64_t moe = config.experts > 0 ? kFloat * std::min(rows, kRowsAtOnce) * config.router.experts_per_token *
                                               (config.moe_intermediate_size + config.expert_width())
                                         : 0;
  const int64_t attention = kFloat * std::min(rows, ops::kRowsInParts) * config.attention_scratch();
  const int64_t draw = last ? logits_rows * (kFloat * config.vocab_size + kTableBytes) : 0;
  made.operators = std::max({gemm, moe, attention, draw}) + kSlack;
  return made;
}

}  // namespace weft
