#include "model/decode_cost.h"

#include "formats/inventory.h"

namespace weft {

ByteCount decode_bytes_per_token(const Checkpoint& checkpoint, LayerRange range) {
  const ModelConfig& config = checkpoint.config();
  ByteCount sum;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (!checkpoint.owns(range, spec)) continue;
    int64_t bytes = checkpoint.stored_bytes(spec);
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

ByteCount routed_expert_bytes(const Checkpoint& checkpoint, LayerIndex layer) {
  ByteCount sum;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (spec.copies <= 1 || !checkpoint.owns({layer, LayerIndex(layer.value + 1)}, spec)) continue;
    sum += ByteCount(checkpoint.stored_bytes(spec));
  }
  return sum;
}

double prefill_operations(const Checkpoint& checkpoint, TokenCount tokens) {
  const ModelConfig& config = checkpoint.config();
  double of_token = 0.0;
  double of_pair = 0.0;
  for (const ParamSpec& spec : checkpoint.params()) {
    if (!spec.matrix || spec.owner != Owner::layer) continue;
    const auto used = static_cast<double>(spec.copies > 1 ? config.router.experts_per_token : 1);
    of_token += 2.0 * used * static_cast<double>(spec.shape.elements());
  }
  for (LayerIndex layer(0); layer < LayerIndex(config.layer_count); ++layer) {
    const ModelConfig::MixerOperations mixer = config.mixer_operations(layer);
    of_token += static_cast<double>(mixer.of_token);
    of_pair += static_cast<double>(mixer.of_pair);
  }
  const auto count = static_cast<double>(tokens.value);
  const double head = 2.0 * static_cast<double>(config.vocab_size * config.hidden_size);
  return count * of_token + count * (count + 1.0) / 2.0 * of_pair + head;
}

double decode_operations(const Checkpoint& checkpoint, TokenCount before) {
  const double head = prefill_operations(checkpoint, TokenCount(0));
  return prefill_operations(checkpoint, before + TokenCount(1)) - prefill_operations(checkpoint, before) + head;
}

}  // namespace weft
