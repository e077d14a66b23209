// A model whose stages run elsewhere, behind the same LoadedExecutor as one in this process.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/executor_loader.h"
#include "model/checkpoint.h"
#include "pipeline/plan.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/wire/link.h"

namespace weft {

struct TransportSecurity;

[[nodiscard]] TransportSecurity transport_security(const ClusterSecurity& security);
[[nodiscard]] LinkOptions link_options();  // of every link of the program

// What the coordinator knows of a model: sizes from the headers where all shards are there, else estimated from config.json,
// which a note says.
struct SizedModel {
  PlanModel model;
  std::shared_ptr<const Checkpoint> headers;  // empty: the shards are not here
  std::vector<std::string> notes;
};
[[nodiscard]] SizedModel size_model(const std::filesystem::path& dir, const std::shared_ptr<const ModelConfig>& config,
                                    const CheckpointOptions& options = {});

struct RemoteModelOptions {
  ModelOptions model;  // dir: configuration and tokenizer; of the shards only headers are read, where they are here
  ClusterConfig cluster;
  LinkOptions link = link_options();
  bool sample_here = false;     // draw tokens in this process (--pp-sample-at coordinator)
  std::string activation;       // "f32" or "bf16": what the boundaries are to be; empty: what the profile says
  std::string build;            // version and commit, for messages
  std::filesystem::path trace;  // Chrome trace; empty: none
  std::function<void(int64_t stage)> before_connect;                        // RemoteOptions
  std::function<bool()> interrupted;                                        // likewise
  std::function<void(const std::string& line)> progress;                    // likewise
  std::function<void(int64_t stage, int64_t done, int64_t total)> loading;  // likewise
  bool one_host = false;            // the stages share this host's memory: the plan is as for one process
  std::shared_ptr<void> processes;  // kept as long as the executor: the workers of this host or process, if there are any
};

// Connects to all stages and loads them; errors as RemoteExecutor. Options of the model that say how this process computes
// (threads, device, memory) are the workers' own and are not sent.
[[nodiscard]] LoadedExecutor load_remote_executor(RemoteModelOptions options);

}  // namespace weft
