// The stages of a model as worker processes of this host, started and ended with their owner.
//
//     LocalCluster cluster({.program = "/proc/self/exe", .stages = 2, .arguments = {"-m", dir}});
//     options.cluster = cluster.config();
//     options.before_connect = [&](int64_t stage) { cluster.check(stage); };
//
// The workers listen on Unix sockets in a folder that only this user can read; nothing is on the network.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/task_thread.h"
#include "pipeline/remote/cluster_config.h"

namespace weft {

struct LocalClusterOptions {
  std::filesystem::path program;  // weft
  int64_t stages = 1;
  std::vector<std::string> arguments;  // of `weft stage` beside --distributed-config and --node-id
  ClusterTimeouts timeouts;
};

class LocalCluster {
 public:
  // Starts the workers; throws unavailable when the system has no process or folder for them.
  explicit LocalCluster(LocalClusterOptions options);
  ~LocalCluster();  // ends them: first asked, after 5 s forced
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  [[nodiscard]] const ClusterConfig& config() const { return config_; }
  [[nodiscard]] pid_t pid(int64_t stage) const { return workers_[static_cast<size_t>(stage)].pid; }
  // A worker that ended before it was ever reached is an error with its last words (bad_checkpoint: what a model lacks shows
  // there); one that ended later is started again.
  void check(int64_t stage);
  void reached() { reached_ = true; }  // all workers were connected once

 private:
  struct Process {
    pid_t pid = -1;
    std::filesystem::path log;
  };

  void start(int64_t stage);
  void fork_worker(int64_t stage);  // starter_'s
  [[nodiscard]] bool ended(Process& worker);

  LocalClusterOptions options_;
  ClusterConfig config_;
  std::filesystem::path folder_;
  std::vector<Process> workers_;
  bool reached_ = false;
  // Forks all workers: the system ends them with the thread that forked them.
  TaskThread starter_;
};

}  // namespace weft
