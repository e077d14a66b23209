// Stages of a checkpoint as threads of this process, behind an Executor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "ops/context.h"
#include "pipeline/executor.h"

namespace weft {

class Checkpoint;
struct Plan;
enum class PlanBalance : uint8_t;
struct PlanModel;

struct ModelOptions {
  std::filesystem::path dir;
  std::optional<ops::Profile> profile;  // absent: exact below 1 GiB of weights, else bf16 (design.md 4)
  ops::Backend backend = ops::Backend::cpu;
  bool dummy_weights = false;            // cuda: weights are made on the GPU, of the checkpoint only headers are read
  int threads = 0;                       // worker threads of each stage; 0: the cores this process may use
  std::optional<std::string> pp_layers;  // "0-3,4-7" or "4+4+4" (distributed.md 3.5); absent: by pp_size
  std::optional<int64_t> memory;         // bytes of this process; absent: what is available now (base/system_memory.h)
  int64_t prefill_chunk = 512;           // most rows of a step that the memory has to hold
  std::optional<int64_t> pp_size;        // stages as threads of this process; absent: as pp_layers says, else 1
  std::optional<PlanBalance> balance;    // of the split by pp_size; absent: by memory
  bool allow_unknown_tensors = false;    // CheckpointOptions
  bool rebuild_index = false;            // likewise
};

struct LoadedExecutor {
  std::shared_ptr<const Checkpoint> checkpoint;  // of stages in this process
  std::shared_ptr<void> processes;               // worker processes of this host, if there are any
  std::unique_ptr<Executor> executor;            // destroyed before them
  ops::Profile profile = ops::Profile::exact;
  int threads = 1;  // of each stage
  std::vector<LayerRange> stages;
  ByteCount weight_bytes;
  int64_t max_context = 0;         // tokens
  std::vector<std::string> notes;  // of the checkpoint and of the plan
};

// The plan for stages that share this host and its memory.
[[nodiscard]] Plan plan_stages(const PlanModel& model, int64_t max_context, const ModelOptions& options);

// Opens the checkpoint, reads the trunk of its weights and builds its stages; needs no tokenizer. A model that is larger than
// the memory keeps the routed experts for which there is room (make_plan with PlanOptions::memory) and says so in a note.
// Throws bad_checkpoint and unsupported for the checkpoint, bad_input and plan_impossible for the options.
[[nodiscard]] LoadedExecutor load_executor(const ModelOptions& options);

}  // namespace weft
