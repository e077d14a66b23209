#include "engine/model.h"

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
  if (!options.pp_layers.empty()) return parse_layer_ranges(options.pp_layers, layers, options.pp_size);
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

Model::Model(ChatFormat format, std::unique_ptr<Executor> executor, int64_t max_context, SamplingChoice defaults)
    : format_(std::move(format)), executor_(std::move(executor)), max_context_(max_context), defaults_(defaults) {
  const KimiTokenizer& tokenizer = format_.tokenizer();
  const int64_t vocab = executor_->vocab_size();
  if (tokenizer.vocab_size() > vocab) {
    fail(ErrorKind::bad_checkpoint, "tokenizer", "wanted at most the {} ids of the model, found {}", vocab,
         tokenizer.vocab_size());
  }
  valid_ids_.assign(static_cast<size_t>((vocab + 31) / 32), 0);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_control(id)) {
      control_ids_.push_back(id);
      if (tokenizer.token_bytes(id).starts_with("<|reserved_token_")) continue;
    }
    valid_ids_[static_cast<size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
  }
}

Model::~Model() = default;

std::unique_ptr<Model> Model::load(const ModelOptions& options) {
  if (!std::filesystem::is_directory(options.dir)) {
    fail(ErrorKind::bad_checkpoint, options.dir.string(), "wanted a model folder, found {}",
         std::filesystem::exists(options.dir) ? "a file" : "nothing");
  }
  const int threads = thread_count(options.threads);
  auto checkpoint = std::make_shared<const Checkpoint>(options.dir);
  const ByteCount weights = checkpoint->weight_bytes(checkpoint->all_layers());
  const ops::Profile profile = options.profile.value_or(weights.value < kExactBelow ? ops::Profile::exact : ops::Profile::bf16);
  const std::vector<LayerRange> ranges = split(*checkpoint, options);
  ChatFormat format = ChatFormat::load(options.dir);
  const SamplingChoice defaults = read_generation_config(options.dir);

  std::vector<std::unique_ptr<Stage>> stages;
  for (const LayerRange& range : ranges) {
    StageOptions stage_options;
    stage_options.layers = range;
    stage_options.profile = profile;
    stages.push_back(make_stage(checkpoint, stage_options));
  }
  LocalExecutorOptions executor_options;
  executor_options.threads = threads;
  executor_options.backend = options.backend;
  executor_options.profile = profile;
  auto executor = std::make_unique<LocalExecutor>(std::move(stages), executor_options);

  auto model = std::make_unique<Model>(std::move(format), std::move(executor), checkpoint->config().max_context, defaults);
  model->checkpoint_ = checkpoint;
  model->profile_ = profile;
  model->threads_ = threads;
  model->stages_ = ranges;
  model->weight_bytes_ = weights;
  model->notes_ = checkpoint->notes();
  return model;
}

}  // namespace weft
