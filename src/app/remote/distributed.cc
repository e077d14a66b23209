// Models whose stages run in other processes.
#include "app/commit.h"
#include "app/flags.h"
#include "app/terminal.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/local_cluster.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

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

}  // namespace

LoadedExecutor ModelFlags::load_distributed() const {
  RemoteModelOptions remote;
  remote.model = options();
  remote.build = fmt::format("0.1.0 {}", kBuildCommit);
  remote.trace = pp_trace;
  remote.progress = [](const std::string& line) { write_note(line); };
  if (!distributed_config.empty()) {
    remote.cluster = read_cluster_config(distributed_config);
    if (pp_size && *pp_size != remote.cluster.stages) {
      fail(ErrorKind::bad_input, "command line", "P07: --pp-size {}: wanted the {} stages of {}", *pp_size, remote.cluster.stages,
           distributed_config);
    }
    if (remote.model.pp_layers) remote.cluster.layers = *remote.model.pp_layers;
    apply(*this, remote.cluster.security);
    const TransportSecurity security = transport_security(remote.cluster.security);
    for (int64_t s = 0; s < remote.cluster.stages; ++s) security.require_usable(remote.cluster.stage(s).address);
    apply(*this, remote.cluster.timeouts);
    return load_remote_executor(std::move(remote));
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
  apply(*this, local.timeouts);
  auto processes = std::make_shared<LocalCluster>(std::move(local));
  remote.cluster = processes->config();
  remote.before_connect = [cluster = processes.get()](int64_t stage) { cluster->check(stage); };
  remote.progress = [](const std::string& line) {
    if (line.find("waiting for") == std::string::npos) write_note(line);  // they start with this process
  };
  remote.processes = processes;
  LoadedExecutor loaded = load_remote_executor(std::move(remote));
  processes->reached();
  return loaded;
}

}  // namespace weft
