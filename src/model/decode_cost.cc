#include "model/decode_cost.h"

#include "formats/inventory.h"

namespace weft {

ByteCount decode_bytes_per_token(const Checkpoint& checkpoint, LayerRange range) {
  const KimiConfig& config = checkpoint.config();
  ByteCount sum;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (!checkpoint.owns(range, spec)) continue;
    int64_t bytes = 0;
    for (const TensorId part : checkpoint.stored(spec)) bytes += checkpoint.inventory().bytes(part);
    if (spec.copies > 1) {
      bytes *= config.router.experts_per_token;
    } else if (spec.owner == Owner::first) {
      const bool head_too = config.tie_word_embeddings && range.end == LayerIndex(config.layer_count);
      if (!head_too) bytes /= config.vocab_size;
    }
    sum += ByteCount(bytes);
  }
  return sum;
}

}  // namespace weft
