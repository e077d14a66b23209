#include "app/remote/stage_server.h"

#include <span>
#include <utility>

#include "app/command.h"
#include "app/commit.h"
#include "app/terminal.h"
#include "base/error.h"
#include "base/guard.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/observe.h"
#include "tensor/built_with_cuda.h"

namespace weft {

StageServer::StageServer(const WorkerOptions& options, const std::string& address, const TransportSecurity& security)
    : insecure_(security.allow_insecure && !security.tls() && !is_loopback(address)) {
  security.require_usable(address);
  if (!options.advertise.empty()) {
    const ParsedAddress parsed = parse_address(options.advertise, false);
    if (parsed.host == "0.0.0.0" || parsed.host == "::")
      fail(ErrorKind::bad_input, "--advertise", "wanted an address that another host reaches, found {}", options.advertise);
  }
  if (options.backend == ops::Backend::cuda && !built_with_cuda())
    fail(ErrorKind::unsupported, "--device", "cuda: wanted a build with CUDA (CMake option WEFT_CUDA), found one without");
  worker_ = while_loading([&] { return std::make_unique<Worker>(options); });
  server_ = std::make_unique<GrpcServer>(
      address, security,
      [worker = worker_.get(), log = options.log](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
        const std::optional<Failure> failure = guard([&] { worker->serve(std::move(stream), peer.names); });
        if (!failure) return;
        if (log) log(fmt::format("{}: {}", peer.address, failure->message));
        failure->raise();
      });
}

StageServer::~StageServer() { stop("the worker ended"); }

void StageServer::stop(const std::string& reason) { worker_->stop(reason); }

WorkerOptions worker_options(const ClusterConfig& cluster, const ClusterNode& node, const TransportSecurity& security) {
  if (node.role != NodeRole::stage) {
    fail(ErrorKind::bad_input, cluster.file.string(), "node '{}': wanted a stage, found the coordinator", node.id);
  }
  WorkerOptions options;
  options.cluster = cluster.name;
  options.node = node.id;
  options.build = fmt::format("{} {}", kVersion, kBuildCommit);
  options.features = built_with();
  options.stage = *node.stage;
  options.coordinator = cluster.coordinator().id;
  options.model_dir = node.model_dir.empty() ? cluster.model : node.model_dir;
  options.memory = node.memory_bytes;
  options.timeouts = cluster.timeouts;
  options.connect = [security](const NodeAddress& to, double timeout) { return connect_grpc(to, security, timeout); };
  return options;
}

}  // namespace weft
