// A coordinator and workers in one process, joined by in-process streams: everything but the transport is real.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/guard.h"
#include "model/checkpoint.h"
#include "pipeline/plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/remote_executor.h"
#include "pipeline/remote/worker.h"

namespace weft::remote_test {

// Stands between two ends of a stream, and may change, delay or drop what passes.
using Tamper = std::function<std::unique_ptr<MessageStream>(std::unique_ptr<MessageStream> stream, const std::string& to)>;

struct ClusterSetup {
  std::filesystem::path dir;
  std::string layers;  // "0-3,4-7"
  ops::Profile profile = ops::Profile::exact;
  ClusterTimeouts timeouts = {.stage = 5.0, .connect = 1.0, .load = 20.0, .heartbeat_interval = 0.2, .heartbeat_misses = 3};
  std::filesystem::path trace = {};
  LinkOptions link = {.limits = {.tensors = 1 << 14}};
  // Of a worker's options before it starts; of streams to a node.
  std::function<void(WorkerOptions& options)> change_worker = nullptr;
  std::map<std::string, std::filesystem::path> model_dirs = {};  // by node, where it is another
  Tamper tamper = nullptr;
  Tamper tamper_back = nullptr;  // the other end: what a node sends
  std::function<void(RemoteOptions& options)> change_coordinator = nullptr;
};

class InProcessCluster {
 public:
  explicit InProcessCluster(ClusterSetup setup) : setup_(std::move(setup)) {
    const auto config = load_model_config(setup_.dir);
    const auto ranges = parse_layer_ranges(setup_.layers, config->layer_count);
    cluster_.name = "test";
    cluster_.stages = static_cast<int64_t>(ranges.size());
    cluster_.layers = setup_.layers;
    cluster_.timeouts = setup_.timeouts;
    ClusterNode coordinator;
    coordinator.id = "coordinator";
    coordinator.address = "unix:/coordinator";
    coordinator.role = NodeRole::coordinator;
    cluster_.nodes.push_back(coordinator);
    for (int64_t s = 0; s < cluster_.stages; ++s) {
      ClusterNode node;
      node.id = "stage-" + std::to_string(s);
      node.address = "unix:/" + node.id;
      node.stage = s;
      cluster_.nodes.push_back(node);
      start(s);
    }
  }
  ~InProcessCluster() {
    for (int64_t s = 0; s < cluster_.stages; ++s) kill(s);
    join();
  }
  InProcessCluster(const InProcessCluster&) = delete;
  InProcessCluster& operator=(const InProcessCluster&) = delete;

  [[nodiscard]] RemoteOptions options() {
    RemoteOptions made;
    made.cluster = cluster_;
    made.build = "test";
    made.config_text = read_text_file(setup_.dir / "config.json");
    made.config = load_model_config(setup_.dir);
    made.link = setup_.link;
    made.trace = setup_.trace;
    made.plan = [this](const std::vector<int64_t>&) {
      PlanOptions wanted;
      wanted.layers = *cluster_.layers;
      wanted.tokens = TokenCount(1024);
      wanted.profile = setup_.profile;
      return make_plan(plan_model(Checkpoint(setup_.dir)), wanted);
    };
    made.connect = [this](const NodeAddress& to, double, const std::function<bool()>&) { return connect(to); };
    made.progress = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      said_.push_back(line);
    };
    if (setup_.change_coordinator) setup_.change_coordinator(made);
    return made;
  }
  [[nodiscard]] std::unique_ptr<RemoteExecutor> executor() { return std::make_unique<RemoteExecutor>(options()); }
  // With another split from now on; workers stay.
  void split(const std::string& layers) { cluster_.layers = layers; }

  // A worker that ends as a process does: its links break, nothing answers.
  void kill(int64_t stage) {
    std::shared_ptr<Worker> worker;
    {
      const std::lock_guard lock(mutex_);
      worker = std::exchange(workers_[stage], nullptr);
    }
    if (worker) worker->stop("the process ended");
  }
  void start(int64_t stage) {
    WorkerOptions made;
    made.cluster = cluster_.name;
    made.node = "stage-" + std::to_string(stage);
    made.build = "test";
    made.stage = stage;
    made.coordinator = "coordinator";
    made.model_dir = setup_.model_dirs.contains(made.node) ? setup_.model_dirs[made.node] : setup_.dir;
    made.threads = 1;
    made.timeouts = setup_.timeouts;
    made.link = setup_.link;
    made.connect = [this](const NodeAddress& to, double) { return connect(to); };
    if (setup_.change_worker) setup_.change_worker(made);
    const auto worker = std::make_shared<Worker>(made);
    const std::lock_guard lock(mutex_);
    workers_[stage] = worker;
  }
  [[nodiscard]] std::shared_ptr<Worker> worker(int64_t stage) {
    const std::lock_guard lock(mutex_);
    return workers_[stage];
  }
  [[nodiscard]] std::vector<std::string> said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

  std::unique_ptr<MessageStream> connect(const NodeAddress& to) {
    std::shared_ptr<Worker> worker;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [stage, candidate] : workers_) {
        if (candidate && to.node == "stage-" + std::to_string(stage)) worker = candidate;
      }
    }
    if (!worker) fail(ErrorKind::unreachable, to.address, "connection refused");
    auto [here, there] = in_process_streams();
    if (setup_.tamper_back) there = setup_.tamper_back(std::move(there), to.node);
    auto shared = std::make_shared<std::unique_ptr<MessageStream>>(std::move(there));
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([worker, shared] { static_cast<void>(guard([&] { worker->serve(std::move(*shared), {}); })); });
    return setup_.tamper ? setup_.tamper(std::move(here), to.node) : std::move(here);
  }

 private:
  void join() {
    for (;;) {
      std::vector<std::thread> threads;
      {
        const std::lock_guard lock(mutex_);
        threads.swap(threads_);
      }
      if (threads.empty()) return;
      for (std::thread& thread : threads) thread.join();
    }
  }

  ClusterSetup setup_;
  ClusterConfig cluster_;
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Worker>> workers_;  // guarded by mutex_
  std::vector<std::thread> threads_;                    // guarded by mutex_
  std::vector<std::string> said_;                       // guarded by mutex_
};

}  // namespace weft::remote_test
