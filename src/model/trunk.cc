#include "model/trunk.h"

#include "formats/inventory.h"
#include "formats/mapped_reader.h"

namespace weft {

std::vector<StoredPart> trunk_parts(const Checkpoint& checkpoint, LayerRange range) {
  const ModelConfig& config = checkpoint.config();
  const bool tied_head = config.tie_word_embeddings && range.end == LayerIndex(config.layer_count);
  std::vector<StoredPart> parts;
  for (const ParamSpec& spec : checkpoint.params()) {
    const bool on_demand = spec.copies > 1 || (spec.owner == Owner::first && !tied_head);
    if (on_demand || !checkpoint.owns(range, spec)) continue;
    for (const StoredPart& part : checkpoint.stored_parts(spec)) parts.push_back(part);
  }
  return parts;
}

ByteCount trunk_bytes(const Checkpoint& checkpoint, LayerRange range) {
  ByteCount sum;
  for (const StoredPart& part : trunk_parts(checkpoint, range)) sum += ByteCount(part.bytes);
  return sum;
}

void read_trunk(const Checkpoint& checkpoint, LayerRange range, const std::function<void(int64_t done)>& on_progress) {
  std::vector<MappedPart> parts;
  for (const StoredPart& part : trunk_parts(checkpoint, range)) parts.push_back(checkpoint.bytes_of(part));
  read_mapped(std::move(parts), {}, on_progress);
}

}  // namespace weft
