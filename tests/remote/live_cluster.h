// Workers of this process, each behind a server of its own, for tests that talk to them as a coordinator or an observer does.
//
//     LiveCluster cluster(2);
//     LoadedExecutor loaded = cluster.load();
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/remote/remote_loader.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/observe.h"
#include "pipeline/remote/worker.h"

#include "support/models.h"

namespace weft::remote_test {

class LiveCluster {
 public:
  // `models`: the folder of each stage; empty: k3-mini for all.
  explicit LiveCluster(int64_t stages, const TransportSecurity& security = {}, std::vector<std::filesystem::path> models = {})
      : security_(security), models_(std::move(models)) {
    config_.name = "test";
    config_.stages = stages;
    ClusterNode coordinator;
    coordinator.id = "coordinator";
    coordinator.address = "unix:" + (folder_.path() / "coordinator").string();
    coordinator.role = NodeRole::coordinator;
    config_.nodes.push_back(coordinator);
    for (int64_t s = 0; s < stages; ++s) {
      ClusterNode node;
      node.id = fmt::format("stage-{}", s);
      // TLS is for sockets of the network.
      node.address = security.tls() ? "127.0.0.1:0" : "unix:" + (folder_.path() / node.id).string();
      node.stage = s;
      config_.nodes.push_back(node);
    }
    nodes_.resize(static_cast<size_t>(stages));
    for (int64_t s = 0; s < stages; ++s) start(s);
  }
  ~LiveCluster() {
    for (size_t s = 0; s < nodes_.size(); ++s) stop(static_cast<int64_t>(s));
  }
  LiveCluster(const LiveCluster&) = delete;
  LiveCluster& operator=(const LiveCluster&) = delete;

  void start(int64_t stage) {
    ClusterNode& place = config_.nodes[static_cast<size_t>(stage) + 1];
    WorkerOptions options;
    options.cluster = config_.name;
    options.node = place.id;
    options.build = "test";
    options.features = built_with();
    options.stage = stage;
    options.coordinator = "coordinator";
    options.model_dir = models_.empty() ? testing_support::k3_mini() : models_[static_cast<size_t>(stage)];
    options.threads = 1;
    options.link = link_options();
    Node& node = nodes_[static_cast<size_t>(stage)];
    options.connect = [security = security_, cut = node.cut](const NodeAddress& to, double timeout) {
      if (*cut) fail(ErrorKind::unreachable, "test", "node '{}' at {}: the link is cut", to.node, to.address);
      return connect_grpc(to, security, timeout);
    };
    node.worker = std::make_unique<Worker>(options);
    node.server = std::make_unique<GrpcServer>(
        place.address, security_, [worker = node.worker.get()](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
          const auto failure = guard([&] { worker->serve(std::move(stream), peer.names); });
          if (failure) failure->raise();
        });
    place.address = node.server->address();
  }
  void stop(int64_t stage) {
    Node& node = nodes_[static_cast<size_t>(stage)];
    if (node.worker) node.worker->stop("the test is over");
    node.server.reset();
    node.worker.reset();
  }

  // From now on the stage cannot connect to others.
  void cut_links_of(int64_t stage) { *nodes_[static_cast<size_t>(stage)].cut = true; }

  [[nodiscard]] const ClusterConfig& config() const { return config_; }
  [[nodiscard]] Worker& worker(int64_t stage) { return *nodes_[static_cast<size_t>(stage)].worker; }

  [[nodiscard]] RemoteModelOptions model_options() const {
    RemoteModelOptions options;
    options.model.dir = testing_support::k3_mini();
    options.cluster = config_;
    options.build = "test";
    return options;
  }
  [[nodiscard]] LoadedExecutor load() const { return load_remote_executor(model_options()); }

  [[nodiscard]] ObserverOptions observer() const {
    ObserverOptions options;
    options.cluster = config_;
    options.security = security_;
    options.link = link_options();
    options.build = "test";
    return options;
  }

 private:
  struct Node {
    std::shared_ptr<std::atomic<bool>> cut = std::make_shared<std::atomic<bool>>(false);
    std::unique_ptr<Worker> worker;
    std::unique_ptr<GrpcServer> server;
  };

  testing_support::TemporaryFolder folder_;
  TransportSecurity security_;
  std::vector<std::filesystem::path> models_;
  ClusterConfig config_;
  std::vector<Node> nodes_;
};

}  // namespace weft::remote_test
