#include "engine/executor_loader.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/system_memory.h"
#include "model/checkpoint.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "model/trunk.h"
#include "pipeline/local_executor.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

constexpr int kMaxThreads = 1024;

int thread_count(int wanted) {
  if (wanted < 0 || wanted > kMaxThreads) {
    fail(ErrorKind::bad_input, "threads", "wanted 1 to {}, or 0 for all cores, found {}", kMaxThreads, wanted);
  }
  return wanted > 0 ? wanted : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

}  // namespace

Plan plan_stages(const PlanModel& model, int64_t max_context, const ModelOptions& options) {
  PlanOptions wanted;
  wanted.stages = options.pp_size;
  if (options.pp_layers) {
    // An empty text is no split, and must not become the default one.
    (void)parse_layer_ranges(*options.pp_layers, model.layer_count(), options.pp_size);
    wanted.layers = *options.pp_layers;
  }
  wanted.balance = options.balance.value_or(wanted.balance);
  if (wanted.balance == PlanBalance::latency) wanted.link = PlanLink{};
  wanted.tokens = std::min(wanted.tokens, TokenCount(max_context));
  wanted.prefill_chunk = options.prefill_chunk;
  wanted.profile = options.profile;
  // A GPU holds all weights in memory of its own.
  wanted.gpu = options.backend == ops::Backend::cuda;
  if (!wanted.gpu) wanted.memory = options.memory.value_or(available_memory());
  return make_plan(model, wanted);
}

LoadedExecutor load_executor(const ModelOptions& options) {
  if (!std::filesystem::is_directory(options.dir)) {
    fail(ErrorKind::bad_checkpoint, options.dir.string(), "wanted a model folder, found {}",
         std::filesystem::exists(options.dir) ? "a file" : "nothing");
  }
  if (options.backend == ops::Backend::cuda && options.memory) {
    fail(ErrorKind::bad_input, "--memory", "wanted --device cpu beside it, found cuda, which keeps all weights on the GPU");
  }
  LoadedExecutor loaded;
  loaded.threads = thread_count(options.threads);
  loaded.checkpoint = std::make_shared<const Checkpoint>(
      options.dir,
      CheckpointOptions{.allow_unknown_tensors = options.allow_unknown_tensors, .rebuild_index = options.rebuild_index});
  loaded.weight_bytes = loaded.checkpoint->weight_bytes(loaded.checkpoint->all_layers());
  loaded.max_context = loaded.checkpoint->config().max_context;
  loaded.notes = loaded.checkpoint->notes();
  const Plan plan = plan_stages(plan_model(*loaded.checkpoint), loaded.max_context, options);
  loaded.profile = plan.profile;
  std::vector<std::unique_ptr<Stage>> stages;
  for (const PlanStage& planned : plan.stages) {
    loaded.stages.push_back(planned.layers);
    StageOptions stage_options;
    stage_options.layers = planned.layers;
    stage_options.profile = loaded.profile;
    if (options.backend == ops::Backend::cuda) stage_options.device = open_cuda_device();
    stage_options.step_rows = options.prefill_chunk;
    stage_options.state_memory = ByteCount(planned.state);
    stage_options.dummy_weights = options.dummy_weights;
    // Host memory is taken as it is used: the engine's budget in bytes bounds it (EngineOptions::state_memory).
    if (stage_options.device->is_host()) stage_options.state.slots = 1 << 20;
    if (planned.experts_kept < planned.experts) {
      stage_options.expert_budget = ByteCount(planned.experts_kept);
      loaded.notes.push_back(fmt::format(
          "memory: {} of the {} of routed experts of layers {} to {} stay in memory, the others are "
          "read again when a token needs them",
          human_bytes(planned.experts_kept), human_bytes(planned.experts), planned.layers.begin, planned.layers.end.value - 1));
    }
    if (!options.dummy_weights) read_trunk(*loaded.checkpoint, planned.layers);
    stages.push_back(make_stage(loaded.checkpoint, stage_options));
  }
  LocalExecutorOptions executor_options;
  executor_options.threads = loaded.threads;
  executor_options.backend = options.backend;
  executor_options.profile = loaded.profile;
  loaded.executor = std::make_unique<LocalExecutor>(std::move(stages), executor_options);
  return loaded;
}

}  // namespace weft
