// A pipeline worker: loads the stage that a coordinator names and carries out its decisions, boundaries in from the stage
// before and out to the next (docs/distributed.md).
//
//     Worker worker(options);
//     GrpcServer server(bind, security, [&](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
//       worker.serve(std::move(stream), peer.names);
//     });
//
// Contract:
// - One coordinator is served at a time. When its link ends, all its sequences are dropped and the weights are kept; the same
// or
//   another coordinator may come and go on without a new load. A second one meanwhile is refused with the first one's name.
// - A decision that fails is answered with the failure; the stage goes on. What ends a session is a lost link, a gap in the
//   numbers of decisions, or bytes that are no frame; the worker then waits for the next coordinator.
// - Nothing that a peer sends ends the process.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/task_thread.h"
#include "base/units.h"
#include "ops/context.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/wire/link.h"

namespace weft::wire {
class Hello;
class HelloReply;
class Plan;
class Status;
class Control;
}  // namespace weft::wire

namespace weft {

class Stage;
struct CheckpointOptions;
struct NodeAddress;

struct WorkerOptions {
  std::string cluster;
  std::string node;         // id of this worker
  std::string build;        // version and commit, for messages
  std::string features;     // what the program was built with, for weft doctor
  int64_t stage = 0;        // of the cluster file
  std::string coordinator;  // id of the node that may give orders
  std::string advertise;    // where the stage before reaches this one; empty: as the coordinator's cluster file says
  std::filesystem::path model_dir;
  bool allow_unknown_tensors = false;  // CheckpointOptions
  bool rebuild_index = false;          // likewise
  int threads = 0;                     // 0: all cores
  ops::Backend backend = ops::Backend::cpu;
  bool dummy_weights = false;
  int64_t memory = 0;  // bytes that the stage may use; 0: what is available
  ClusterTimeouts timeouts;
  LinkOptions link;
  std::filesystem::path load_audit;  // written after each load; empty: not
  // To the next stage.
  std::function<std::unique_ptr<MessageStream>(const NodeAddress& to, double timeout)> connect;
  std::function<void(const std::string& line)> log;  // from any thread
  // Measurements and tests: what stands between the worker and its stage.
  std::function<std::unique_ptr<Stage>(std::unique_ptr<Stage> stage)> wrap_stage;
};

class Worker {
 public:
  // Reads config.json; throws bad_checkpoint and unsupported for it.
  explicit Worker(WorkerOptions options);
  ~Worker();  // ends all sessions; no serve() may be running
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves one connection until it ends. `names`: whom the other end's certificate names; empty without one. Throws what ended
  // it: handshake, security, stage_lost, bad_input.
  void serve(std::unique_ptr<MessageStream> stream, std::span<const std::string> names);

  // Ends every session with that reason; serve() returns.
  void stop(const std::string& reason);

  [[nodiscard]] wire::Status status();

 private:
  struct Session;
  struct Loaded;
  struct Counters;
  class Listed;

  void serve_coordinator(const std::shared_ptr<Link>& shared, const wire::Hello& hello);
  void serve_upstream(const std::shared_ptr<Link>& shared, const wire::Hello& hello);
  void serve_observer(Link& link, const wire::Hello& hello);
  [[nodiscard]] wire::Hello self() const;
  [[nodiscard]] wire::HelloReply reply_to(const wire::Hello& hello) const;
  void control(const std::shared_ptr<Session>& session, const wire::Control& message);
  void decide(const std::shared_ptr<Session>& session, const Frame& frame);
  void count_failed_load(const Failure& failure);
  [[nodiscard]] CheckpointOptions checkpoint_options(LayerRange layers) const;
  // On the compute thread:
  void survey(Session& session, const wire::Plan& plan, int64_t stage);
  void load(Session& session, const wire::Control& message);
  void connect(const std::shared_ptr<Session>& session);
  void run_step(const std::shared_ptr<Session>& session, uint64_t number, const std::shared_ptr<const Frame>& frame,
                double queued);
  void end_session(const std::shared_ptr<Session>& session, const std::string& reason);
  void log(const std::string& line) const;

  WorkerOptions options_;
  std::string config_text_;
  std::string config_sha256_;
  std::string family_;
  std::string boot_;
  std::chrono::steady_clock::time_point started_;
  mutable std::mutex mutex_;
  std::shared_ptr<Session> session_;             // guarded by mutex_
  std::map<std::shared_ptr<Link>, bool> links_;  // guarded by mutex_: all connections, and whether their bytes count
  uint64_t last_epoch_ = 0;                      // guarded by mutex_
  bool stopped_ = false;                         // guarded by mutex_
  std::string stop_reason_;                      // guarded by mutex_
  std::unique_ptr<Counters> counters_;
  std::unique_ptr<Loaded> loaded_;  // the compute thread only
  TaskThread compute_;              // last: what it still runs uses the members above
};

}  // namespace weft
