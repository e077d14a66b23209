// Every layer of a model on its own, from the input that a reference run gave it.
//
// Rounding adds up over the layers of a whole run, so that a late layer is far from the reference although each layer is near.
// Here layer l starts from the reference's boundary before l, and what it adds is its own.
#pragma once

#include <atomic>
#include <memory>

#include "ops/context.h"
#include "pipeline/trace.h"

namespace weft {

class Checkpoint;

struct LayerRunOptions {
  int threads = 1;
  ops::Backend backend = ops::Backend::cpu;
  ops::Profile profile = ops::Profile::exact;
  const std::atomic<bool>* cancelled = nullptr;  // looked at inside each layer; once set, run_layers throws unavailable
};

// hidden[l + 1] of the result is the output of layer l for input hidden[l] and the residual blocks of `reference` (rounded to
// bfloat16 in profile bf16, as a boundary is), with the reference's routing; the state of a layer begins empty and consumes all
// tokens in one step. hidden[0] is the run's own embedding; logits are those of the last stage. Throws bad_input when
// `reference` is not of a model of these sizes.
[[nodiscard]] Trace run_layers(const std::shared_ptr<const Checkpoint>& checkpoint, const LayerRunOptions& options,
                               const Trace& reference);

}  // namespace weft
