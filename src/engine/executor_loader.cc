#include "engine/executor_loader.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "pipeline/local_executor.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

constexpr int64_t kExactBelow = 1LL << 30;  // bytes of weights (design.md 4)
constexpr int kMaxThreads = 1024;

std::vector<LayerRange> split(const Checkpoint& checkpoint, const ModelOptions& options) {
  const int64_t layers = checkpoint.all_layers().size();
  if (options.pp_layers) return parse_layer_ranges(*options.pp_layers, layers, options.pp_size);
  if (options.pp_size.value_or(1) == 1) return {checkpoint.all_layers()};
  PlanOptions plan_options;
  plan_options.stages = options.pp_size;
  std::vector<LayerRange> ranges;
  for (const PlanStage& stage : make_plan(plan_model(checkpoint), plan_options).stages) ranges.push_back(stage.layers);
  return ranges;
}

int thread_count(int wanted) {
  if (wanted < 0 || wanted > kMaxThreads) {
    fail(ErrorKind::bad_input, "threads", "wanted 1 to {}, or 0 for all cores, found {}", kMaxThreads, wanted);
  }
  return wanted > 0 ? wanted : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

}  // namespace

LoadedExecutor load_executor(const ModelOptions& options) {
  if (!std::filesystem::is_directory(options.dir)) {
    fail(ErrorKind::bad_checkpoint, options.dir.string(), "wanted a model folder, found {}",
         std::filesystem::exists(options.dir) ? "a file" : "nothing");
  }
  LoadedExecutor loaded;
  loaded.threads = thread_count(options.threads);
  loaded.checkpoint = std::make_shared<const Checkpoint>(options.dir);
  loaded.weight_bytes = loaded.checkpoint->weight_bytes(loaded.checkpoint->all_layers());
  loaded.profile = options.profile.value_or(loaded.weight_bytes.value < kExactBelow ? ops::Profile::exact : ops::Profile::bf16);
  loaded.stages = split(*loaded.checkpoint, options);
  std::vector<std::unique_ptr<Stage>> stages;
  for (const LayerRange& range : loaded.stages) {
    StageOptions stage_options;
    stage_options.layers = range;
    stage_options.profile = loaded.profile;
    if (options.backend == ops::Backend::cuda) stage_options.device = open_cuda_device();
    stage_options.dummy_weights = options.dummy_weights;
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
