// Models whose stages run in other processes.
#include <map>
#include <mutex>

#include "app/commit.h"
#include "app/flags.h"
#include "app/plan_cluster.h"
#include "app/remote/stage_server.h"
#include "app/terminal.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/local_cluster.h"
#include "pipeline/remote/remote_executor.h"
#include "pipeline/wire/link.h"

namespace weft {
namespace {

// Lines and the progress of all stages together, on one standard error.
class LoadDisplay {
 public:
  void note(const std::string& line) {
    const std::lock_guard lock(mutex_);
    status_.clear();
    write_note(line);
  }
  void progress(int64_t stage, int64_t done, int64_t total) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    stages_[stage] = {done, total};
    int64_t done_of_all = 0;
    int64_t total_of_all = 0;
    for (const auto& [of, bytes] : stages_) {
      done_of_all += bytes.first;
      total_of_all += bytes.second;
    }
    status_.progress("bytes", done_of_all, total_of_all);
  }
  // The first load: what stages read when they come back is not shown over an answer.
  void end() {
    const std::lock_guard lock(mutex_);
    status_.clear();
    over_ = true;
  }

 private:
  std::mutex mutex_;
  StatusLine status_;                                      // guarded by mutex_
  std::map<int64_t, std::pair<int64_t, int64_t>> stages_;  // bytes done and in all; guarded by mutex_
  bool over_ = false;                                      // guarded by mutex_
};

LoadedExecutor connect_and_load(RemoteModelOptions remote, const std::shared_ptr<LoadDisplay>& display) {
  remote.loading = [display](int64_t stage, int64_t done, int64_t total) { display->progress(stage, done, total); };
  LoadedExecutor loaded = load_remote_executor(std::move(remote));
  display->end();
  return loaded;
}

void apply(const ModelFlags& flags, ClusterTimeouts& timeouts) {
  timeouts.stage = flags.stage_timeout.value_or(timeouts.stage);
  timeouts.connect = flags.connect_timeout.value_or(timeouts.connect);
  timeouts.load = flags.load_timeout.value_or(timeouts.load);
  timeouts.heartbeat_interval = flags.heartbeat_interval.value_or(timeouts.heartbeat_interval);
  timeouts.heartbeat_misses = flags.heartbeat_misses.value_or(timeouts.heartbeat_misses);
}

void apply(const ModelFlags& flags, ClusterSecurity& security) {
  security.allow_insecure = security.allow_insecure || flags.insecure;
  if (!flags.tls_cert.empty()) security.cert = flags.tls_cert;
  if (!flags.tls_key.empty()) security.key = flags.tls_key;
  if (!flags.tls_ca.empty()) security.ca = flags.tls_ca;
  if (!flags.token_file.empty()) security.token_file = flags.token_file;
}

// Stage 0 where the coordinator is, at the address that the cluster file gives it.
std::shared_ptr<StageServer> stage_in_this_process(const ModelFlags& flags, const ClusterConfig& cluster,
                                                   const TransportSecurity& security,
                                                   const std::shared_ptr<LoadDisplay>& display) {
  const ClusterNode& node = cluster.stage(0);
  WorkerOptions options = worker_options(cluster, node, security);
  options.model_dir = flags.dir;
  options.threads = flags.threads;
  options.backend = flags.options().backend;
  if (!flags.memory.empty()) options.memory = parse_memory(flags.memory, "--memory");
  options.allow_unknown_tensors = flags.allow_unknown_tensors;
  options.rebuild_index = flags.rebuild_index;
  options.link = flags.wire.options(security.tls() || node.address.starts_with("unix:"));
  options.log = [display, id = node.id](const std::string& line) { display->note(fmt::format("{}: {}", id, line)); };
  auto made = std::make_shared<StageServer>(options, node.address, security);
  if (made->insecure()) display->note("warning: plaintext on an address that others can reach (--insecure)");
  return made;
}

}  // namespace

LoadedExecutor ModelFlags::load_distributed() const {
  RemoteModelOptions remote;
  remote.activation = activation_dtype;
  remote.sample_here = sample_at == "coordinator";
  remote.model = options();
  remote.build = fmt::format("{} {}", kVersion, kBuildCommit);
  remote.trace = pp_trace;
  remote.interrupted = [] { return interrupt_flag().load(); };
  const auto display = std::make_shared<LoadDisplay>();
  remote.progress = [display](const std::string& line) { display->note(line); };
  if (!distributed_config.empty()) {
    // The file is read with what the command line allows: it refuses plaintext to other hosts itself.
    ClusterSecurity given;
    apply(*this, given);
    remote.cluster = read_cluster_config(distributed_config, given);
    apply_split(split(), remote.cluster);
    // What is wrong with the split is said before anything is started and any node asked (distributed.md 3.5).
    if (remote.cluster.layers)
      (void)parse_layer_ranges(*remote.cluster.layers, load_model_config(dir)->layer_count, remote.cluster.stages);
    const TransportSecurity security = transport_security(remote.cluster.security);
    for (int64_t s = 0; s < remote.cluster.stages; ++s) security.require_usable(remote.cluster.stage(s).address);
    apply(*this, remote.cluster.timeouts);
    remote.link = wire.options(security.tls());
    if (colocate_stage0) remote.processes = stage_in_this_process(*this, remote.cluster, security, display);
    return connect_and_load(std::move(remote), display);
  }
  // The split is checked before anything is started.
  const std::shared_ptr<const ModelConfig> config = load_model_config(dir);
  int64_t stages = pp_size.value_or(1);
  if (remote.model.pp_layers) {
    stages = static_cast<int64_t>(parse_layer_ranges(*remote.model.pp_layers, config->layer_count, pp_size).size());
  }
  if (stages > config->layer_count) {
    fail(ErrorKind::plan_impossible, "plan", "P10: {} stages for {} layers; wanted at most one stage per layer", stages,
         config->layer_count);
  }
  LocalClusterOptions local;
  local.program = "/proc/self/exe";
  local.stages = stages;
  local.arguments = {"-m", dir, "--device", device};
  // The cores are shared: stages work at the same time.
  if (threads > 0) {
    local.arguments.emplace_back("--threads");
    local.arguments.push_back(fmt::format("{}", threads));
  }
  if (reference) local.arguments.emplace_back("--reference");
  if (allow_unknown_tensors) local.arguments.emplace_back("--allow-unknown-tensors");
  if (rebuild_index) local.arguments.emplace_back("--rebuild-index");
  apply(*this, local.timeouts);
  auto processes = std::make_shared<LocalCluster>(std::move(local));
  remote.cluster = processes->config();
  remote.before_connect = [cluster = processes.get()](int64_t stage) { cluster->check(stage); };
  remote.progress = [display](const std::string& line) {
    if (line.find("waiting for") == std::string::npos) display->note(line);  // they start with this process
  };
  remote.processes = processes;
  remote.one_host = true;
  remote.link = wire.options(true);
  LoadedExecutor loaded = connect_and_load(std::move(remote), display);
  processes->reached();
  return loaded;
}

Json stage_report(Executor& executor) {
  auto* const remote = dynamic_cast<RemoteExecutor*>(&executor);
  return remote != nullptr ? remote->stage_report() : Json::array();
}

void abandon_stages(Executor& executor, const std::string& reason) {
  if (auto* const remote = dynamic_cast<RemoteExecutor*>(&executor)) remote->abandon(reason);
}

}  // namespace weft
