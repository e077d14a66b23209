// What a stage takes of a GPU's memory, known before anything is loaded: `weft plan --device cuda` states it, and the stage
// plans its pool by it.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace weft {

class Checkpoint;
struct ModelConfig;
struct ParamSpec;

struct GpuMemory {
  ByteCount weights;
  ByteCount state;
  ByteCount workspace;

  [[nodiscard]] ByteCount total() const { return weights + state + workspace; }
  GpuMemory& operator+=(const GpuMemory& other) {
    weights += other.weights;
    state += other.state;
    workspace += other.workspace;
    return *this;
  }
};

// At most, of one tensor whose stored parts have `stored` bytes: matrices as stored, vectors in float32, each part aligned.
[[nodiscard]] int64_t gpu_tensor_bytes(const ParamSpec& spec, int64_t stored);
[[nodiscard]] ByteCount gpu_weight_bytes(const Checkpoint& checkpoint, LayerRange layers);

// Bytes of a step of `rows` rows of which at most kPlannedLogitsRows want logits.
inline constexpr int64_t kPlannedLogitsRows = 64;
struct GpuWorkspace {
  int64_t layers = 0;     // activations of the sub-layer that needs most
  int64_t residual = 0;   // running sum, residual blocks and logits, which outlive a layer
  int64_t operators = 0;  // scratch memory of the operators

  [[nodiscard]] int64_t total() const { return layers + residual + operators; }
};
[[nodiscard]] GpuWorkspace gpu_workspace(const ModelConfig& config, LayerRange layers, int64_t rows);

}  // namespace weft
