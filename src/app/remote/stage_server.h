// A pipeline worker that listens: what `weft stage` runs, and --colocate-stage0 in the coordinator's process.
#pragma once

#include <memory>
#include <string>

#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/worker.h"

namespace weft {

struct ClusterConfig;
struct ClusterNode;

class StageServer {
 public:
  // Listens at `address`. Throws what Worker and GrpcServer throw, security for plaintext that others can reach.
  StageServer(const WorkerOptions& options, const std::string& address, const TransportSecurity& security);
  ~StageServer();  // stop()
  StageServer(const StageServer&) = delete;
  StageServer& operator=(const StageServer&) = delete;

  [[nodiscard]] Worker& worker() { return *worker_; }
  [[nodiscard]] const std::string& address() const { return server_->address(); }
  // Whether plaintext is allowed where others can reach it.
  [[nodiscard]] bool insecure() const { return insecure_; }
  // Ends all connections in order; neighbours and coordinator hear why.
  void stop(const std::string& reason);

 private:
  bool insecure_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<GrpcServer> server_;  // ends before the worker
};

// What the cluster file says of a stage: names, timeouts, memory, model folder (the node's, else the cluster's; may be empty).
[[nodiscard]] WorkerOptions worker_options(const ClusterConfig& cluster, const ClusterNode& node,
                                           const TransportSecurity& security);

}  // namespace weft
