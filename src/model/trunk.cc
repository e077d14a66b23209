#include "model/trunk.h"

#include "formats/inventory.h"
#include "formats/mapped_reader.h"

namespace weft {

std::vector<TensorId> trunk_tensors(const Checkpoint& checkpoint, LayerRange range) {
  const ModelConfig& config = checkpoint.config();
  const bool tied_head = config.tie_word_embeddings && range.end == LayerIndex(config.layer_count);
  std::vector<TensorId> tensors;
  for (const ParamSpec& spec : checkpoint.params()) {
    const bool on_demand = spec.copies > 1 || (spec.owner == Owner::first && !tied_head);
    if (on_demand || !checkpoint.owns(range, spec)) continue;
    for (const TensorId id : checkpoint.stored(spec)) tensors.push_back(id);
  }
  return tensors;
}

ByteCount trunk_bytes(const Checkpoint& checkpoint, LayerRange range) {
  ByteCount sum;
  for (const TensorId id : trunk_tensors(checkpoint, range)) sum += ByteCount(checkpoint.inventory().bytes(id));
  return sum;
}

void read_trunk(const Checkpoint& checkpoint, LayerRange range) {
  std::vector<MappedPart> parts;
  for (const TensorId id : trunk_tensors(checkpoint, range)) parts.push_back(checkpoint.bytes_of(id));
  read_mapped(std::move(parts));
}

}  // namespace weft
