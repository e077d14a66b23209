#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/units.h"
#include "model/state_pool.h"
#include "ops/context.h"

namespace weft {

class Checkpoint;
class Stage;

struct StageOptions {
  LayerRange layers;
  ops::Profile profile = ops::Profile::exact;  // part of the state's fingerprint; the context of forward() must agree
  std::string fingerprint = {};                // of the whole model, as its states carry it; empty: read from the checkpoint
  std::optional<ByteCount> expert_budget;      // most bytes of routed experts in memory at once; absent: no limit
  StatePool::Limits state{.slots = 256, .pages = 1 << 20};
  std::shared_ptr<Device> device = std::make_shared<HostDevice>();  // where weights and states lie; the stage's alone
  // GPU: what the pool is planned for beside the weights; more comes from a reserve.
  int64_t step_rows = 512;
  ByteCount state_memory;
  bool dummy_weights = false;  // GPU: weights are made there, and the checkpoint's data is not read (model/weight_placer.h)
};

// The stage of the checkpoint's family. Binds (and checks) only the tensors of options.layers. A checkpoint of which only a
// part is open needs a fingerprint.
[[nodiscard]] std::unique_ptr<Stage> make_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options);

}  // namespace weft
