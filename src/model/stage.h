// Layers [s, e) of a model, with the embedding if s = 0 and the head if e = L. The single-process model is the stage [0, L).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/units.h"
#include "model/batch.h"
#include "model/boundary.h"
#include "model/gpu_memory.h"
#include "model/state_pool.h"
#include "ops/context.h"

namespace weft {

// What a stage, or all stages of an executor, have in memory.
struct MemoryUse {
  ByteCount trunk;      // weights that every token reads, as mapped
  ByteCount experts;    // routed experts that are held, as mapped
  ByteCount state;      // of all sequences
  ByteCount workspace;  // activations of the largest step so far
  // On GPUs, zero elsewhere: what was planned, and the most that was used so far.
  GpuMemory gpu_planned = {};
  GpuMemory gpu_used = {};

  [[nodiscard]] ByteCount total() const { return trunk + experts + state + workspace; }
  MemoryUse& operator+=(const MemoryUse& other) {
    trunk += other.trunk;
    experts += other.experts;
    state += other.state;
    workspace += other.workspace;
    gpu_planned += other.gpu_planned;
    gpu_used += other.gpu_used;
    return *this;
  }
};

class Stage {
 public:
  virtual ~Stage() = default;

  [[nodiscard]] virtual LayerRange layers() const = 0;
  [[nodiscard]] virtual int64_t layer_count() const = 0;  // L of the whole model
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  [[nodiscard]] virtual int64_t hidden_size() const = 0;
  [[nodiscard]] virtual StatePool& states() = 0;
  [[nodiscard]] virtual Device& device() = 0;  // where it computes: what the context of forward() must name
  // Weight bytes that one decoded token reads (routed experts counted as experts_per_token).
  [[nodiscard]] virtual ByteCount bytes_per_token() const = 0;

  [[nodiscard]] virtual MemoryUse memory() const = 0;
  // Of the operators' workspace, as planned; nothing in host memory, which grows.
  [[nodiscard]] virtual ByteCount operator_memory() const { return ByteCount(0); }

  [[nodiscard]] bool first() const { return layers().begin == LayerIndex(0); }
  [[nodiscard]] bool last() const { return layers().end == LayerIndex(layer_count()); }

  struct Output {
    std::optional<Boundary> boundary;  // of all stages but the last
    Tensor logits;  // last stage: [logits_rows, V] float32 on its device; on a GPU valid until the next forward()
  };
  // Runs the batch through the layers and advances the states that its groups name. `in` is given exactly for all stages but
  // the first. Throws bad_input for ids outside the vocabulary and for a boundary of the wrong layer, rows, width or block
  // count, unavailable when a mapped weight file was lost.
  [[nodiscard]] virtual Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) = 0;
  // Waits until the last forward(), which was of `batch`, is done, and throws what a GPU found meanwhile: values that are not
  // finite (bad_checkpoint naming layer and position). A stage in host memory throws that inside forward().
  virtual void settle(const Batch& batch) { (void)batch; }
  // Steps of which a GPU replayed a recording.
  [[nodiscard]] virtual int64_t replayed_steps() const { return 0; }
};

}  // namespace weft
