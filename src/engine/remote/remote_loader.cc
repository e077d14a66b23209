#include "engine/remote/remote_loader.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "formats/shard_index.h"
#include "model/checkpoint.h"
#include "pipeline/plan.h"
#include "pipeline/remote/cluster_plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/remote_executor.h"

namespace weft {
namespace {

constexpr int kMostSampleThreads = 8;  // a row each

// Whether the shards that sizes come from are here; a coordinator needs none of them.
bool has_shards(const std::filesystem::path& dir) {
  if (!std::filesystem::exists(dir / kShardIndexName)) return std::filesystem::exists(dir / "model.safetensors");
  const ShardIndex index = ShardIndex::load(dir / kShardIndexName);
  return std::ranges::all_of(index.files(), [&](const std::string& file) { return std::filesystem::exists(dir / file); });
}

}  // namespace

TransportSecurity transport_security(const ClusterSecurity& security) {
  return {security.cert, security.key, security.ca, security.token_file, security.allow_insecure};
}

LinkOptions link_options() {
  LinkOptions made;
  made.limits.tensors = 1 << 14;  // a saved state has some for each layer
  return made;
}

SizedModel size_model(const std::filesystem::path& dir, const std::shared_ptr<const ModelConfig>& config,
                      const CheckpointOptions& options) {
  SizedModel made;
  if (has_shards(dir)) {
    made.headers = std::make_shared<const Checkpoint>(dir, options);
    made.notes = made.headers->notes();
    made.model = plan_model(*made.headers);
  } else {
    made.model = plan_model(config);
    made.notes = config->notes;
    made.notes.emplace_back("the shards are not here: the plan's sizes are estimated from config.json");
  }
  return made;
}

LoadedExecutor load_remote_executor(RemoteModelOptions options) {
  const std::filesystem::path& dir = options.model.dir;
  LoadedExecutor loaded;
  loaded.threads = options.model.threads;
  RemoteOptions remote;
  remote.config = load_model_config(dir);
  remote.config_text = read_text_file(dir / "config.json", ErrorKind::bad_checkpoint);
  loaded.max_context = remote.config->max_context;
  const SizedModel sized =
      size_model(dir, remote.config,
                 {.allow_unknown_tensors = options.model.allow_unknown_tensors, .rebuild_index = options.model.rebuild_index});
  loaded.notes = sized.notes;
  const auto check_activation = [&](ops::Profile profile) {
    const std::string made = profile == ops::Profile::bf16 ? "bf16" : "f32";
    if (options.activation.empty() || options.activation == made) return;
    fail(ErrorKind::bad_input, "--activation-dtype", "wanted {} with profile {}, found {}", made, ops::to_string(profile),
         options.activation);
  };
  remote.plan = [&, one_host = options.one_host](const std::vector<int64_t>& memory) {
    if (one_host) {
      Plan plan = plan_stages(sized.model, loaded.max_context, options.model);
      check_activation(plan.profile);
      return plan;
    }
    // As `weft plan` splits by the same file, over the memory that the nodes have.
    PlanOptions wanted = cluster_plan_options(options.cluster, loaded.max_context, memory);
    wanted.prefill_chunk = options.model.prefill_chunk;
    wanted.profile = options.model.profile;
    Plan plan = make_plan(sized.model, wanted);
    check_activation(plan.profile);
    return plan;
  };
  if (!options.one_host) {
    // A plan that does not fit is refused before any node is asked, where the file says what they have (distributed.md 3.5).
    std::vector<int64_t> stated;
    for (int64_t s = 0; s < options.cluster.stages; ++s) stated.push_back(options.cluster.stage(s).memory_bytes);
    if (std::ranges::all_of(stated, [](int64_t bytes) { return bytes > 0; })) (void)remote.plan(stated);
  }
  const TransportSecurity security = transport_security(options.cluster.security);
  remote.connect = [security](const NodeAddress& to, double timeout, const std::function<bool()>& give_up) {
    return connect_grpc(to, security, timeout, give_up);
  };
  remote.interrupted = options.interrupted;
  remote.cluster = options.cluster;
  remote.build = options.build;
  remote.prefill_chunk = options.model.prefill_chunk;
  remote.link = options.link;
  if (options.sample_here) remote.sample_at = SampleAt::coordinator;
  if (options.model.backend == ops::Backend::reference) remote.sample_backend = ops::Backend::reference;
  remote.sample_threads = options.model.threads > 0
                              ? options.model.threads
                              : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostSampleThreads);
  remote.before_connect = options.before_connect;
  remote.progress = options.progress;
  remote.loading = options.loading;
  remote.trace = options.trace;
  auto executor = std::make_unique<RemoteExecutor>(std::move(remote));
  loaded.profile = executor->plan().profile;
  for (const PlanStage& stage : executor->plan().stages) loaded.stages.push_back(stage.layers);
  loaded.weight_bytes = executor->weight_bytes();
  loaded.processes = std::move(options.processes);
  loaded.executor = std::move(executor);
  return loaded;
}

}  // namespace weft
