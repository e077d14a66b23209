// Stages in other processes and on other hosts, behind an Executor (docs/distributed.md).
//
// The coordinator numbers every decision (create, fork, release, step, ...) and sends it to all stages; boundaries go from
// stage to stage; each stage says when it is done, the last one with the sampled tokens. Several steps may be on their way.
//
// Failure: a link that is lost or silent, a stage that does not finish a step in time, or one that reports a lost neighbour
// ends the epoch: every open step completes with stage_lost or stage_timeout, which names the stage and the cause, all
// sequences are dead, and decisions are refused with that reason until a thread of the executor has connected to all stages
// again. Nothing waits for ever. A failure of one step that leaves the stages in order (bad input, no memory) is the failure of
// that step alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model_config.h"
#include "pipeline/executor.h"
#include "pipeline/plan.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/wire/link.h"

namespace weft {

struct NodeAddress;

// Where tokens are drawn. The coordinator needs the logits of each token for it.
enum class SampleAt : uint8_t { last_stage, coordinator };

struct RemoteOptions {
  ClusterConfig cluster;
  std::string build;        // version and commit, for messages
  std::string config_text;  // bytes of config.json
  std::shared_ptr<const ModelConfig> config;
  int64_t prefill_chunk = 512;
  LinkOptions link;
  SampleAt sample_at = SampleAt::last_stage;
  ops::Backend sample_backend = ops::Backend::cpu;  // of draws here: the stages', for equal bits
  int sample_threads = 1;                           // likewise
  // The plan for nodes with so many bytes of memory each. Throws what make_plan() throws.
  std::function<Plan(const std::vector<int64_t>& memory)> plan;
  // As connect_grpc(): within `timeout` seconds, or until `give_up` says true.
  std::function<std::unique_ptr<MessageStream>(const NodeAddress& to, double timeout, const std::function<bool()>& give_up)>
      connect;
  // Whether the start is to end (Ctrl-C while stages are missing), asked while it waits for them; from several threads. May be
  // empty.
  std::function<bool()> interrupted;
  // Before each try to connect to a stage; throws when that cannot succeed (a worker process that ended). May be empty.
  std::function<void(int64_t stage)> before_connect;
  std::function<void(const std::string& line)> progress;  // of connecting and loading; from several threads
  // Bytes of a stage's weights that every token reads, while it loads them; from several threads. May be empty.
  std::function<void(int64_t stage, int64_t done, int64_t total)> loading;
  std::filesystem::path trace;  // Chrome trace of the run (docs/distributed.md, "Trace"); empty: none
};

class RemoteExecutor final : public Executor {
 public:
  // Connects to all stages, in any order in which they come up, until the load timeout; loads them. Throws unreachable (no
  // connection in that time), handshake (all differences of all stages), security, unavailable (interrupted), what the plan and
  // the loading of a stage throw.
  explicit RemoteExecutor(RemoteOptions options);
  ~RemoteExecutor() override;
  RemoteExecutor(const RemoteExecutor&) = delete;
  RemoteExecutor& operator=(const RemoteExecutor&) = delete;

  [[nodiscard]] int64_t layer_count() const override;
  [[nodiscard]] int64_t vocab_size() const override;
  [[nodiscard]] int64_t stage_count() const override;
  [[nodiscard]] const std::string& fingerprint() const override;
  [[nodiscard]] ByteCount bytes_per_token() const override;
  [[nodiscard]] StateMemory state_memory() const override;
  [[nodiscard]] const StateLedger& states() const override;
  [[nodiscard]] MemoryUse memory() override;
  [[nodiscard]] std::optional<Failure> trouble() const override;
  // Throws the reason while the stages are not connected.
  [[nodiscard]] SequenceId create() override;
  // Throws unavailable for a sequence of which a step failed, the reason for one of an epoch that is gone. Does not wait.
  [[nodiscard]] SequenceId fork(SequenceId sequence) override;
  void release(SequenceId sequence) override;
  [[nodiscard]] TokenCount consumed(SequenceId sequence) const override;
  // Throws unsupported for a trace or routing, which stay in one process.
  Ticket submit(Step step) override;
  [[nodiscard]] Completion next() override;
  [[nodiscard]] SavedState snapshot(SequenceId sequence, std::span<const int32_t> ids) override;
  [[nodiscard]] SequenceId restore(const StateFile& file) override;

  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] ByteCount weight_bytes() const;  // over all stages
  // Whether all stages are connected, and since when they are not.
  [[nodiscard]] bool ready() const;
  [[nodiscard]] uint64_t epoch() const;
  // Ends what the stages have under way, which fails with stage_lost and this reason, without waiting for any of them.
  void abandon(const std::string& reason);
  // One object a stage: node, address, layers, memory as measured by the stage and as planned, seconds of compute, wait and
  // send, idle share, bytes.
  [[nodiscard]] Json stage_report();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A worker's status in words of the report and of `weft status`.
[[nodiscard]] Json status_json(const std::string& encoded_status);

}  // namespace weft
