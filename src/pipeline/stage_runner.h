// A stage, what it computes with, and the states of all sequences on it. It carries out decisions; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/guard.h"
#include "base/worker_pool.h"
#include "model/sequence_state.h"
#include "model/stage.h"
#include "ops/context.h"
#include "parallel/communicator.h"
#include "pipeline/executor.h"
#include "tensor/workspace.h"

namespace weft {

struct StageRunnerOptions {
  int threads = 1;  // worker threads
  ops::Backend backend = ops::Backend::cpu;
  ops::Profile profile = ops::Profile::exact;
};

// A step with the sequences that its checkpoints become.
struct StageStep {
  Step step;
  std::vector<std::vector<SequenceId>> checkpoint_ids;  // of each rows entry
};

// What one stage hands to the next: a boundary, nothing (before the first stage), or why there is none.
struct Handover {
  std::optional<Boundary> boundary;
  std::optional<Failure> failure;
};

class StageRunner {
 public:
  StageRunner(std::unique_ptr<Stage> stage, const StageRunnerOptions& options);

  [[nodiscard]] Stage& stage() { return *stage_; }
  [[nodiscard]] MemoryUse memory() const;
  [[nodiscard]] int64_t sequences() const { return static_cast<int64_t>(states_.size()); }

  void create(SequenceId sequence);               // empty
  void fork(SequenceId sequence, SequenceId as);  // throws as state()
  void forget(SequenceId sequence);               // an unknown one is ignored
  void forget_all();
  // Throws unavailable for a sequence that is not here or of which a step failed.
  [[nodiscard]] SequenceState& state(SequenceId sequence);
  // Throws bad_input as SequenceState::import_tensors.
  void restore(SequenceId sequence, TokenCount consumed, const std::map<std::string, TensorView>& tensors);

  // What a step leaves: the boundary for the next stage, or the results of the last one, or why there is neither; then its
  // sequences refuse further steps.
  struct Outcome {
    Handover handover;
    std::vector<RowsResult> results;  // last stage: in the order of Step::rows
  };
  [[nodiscard]] Outcome run(const StageStep& open, Handover in) noexcept;

 private:
  struct Extended {
    SequenceState* state;
    int64_t first_logits_row = 0;
    int64_t logits_rows = 0;
  };

  Stage::Output forward(const StageStep& open, Handover in, Batch& batch, std::vector<Extended>& extended);
  std::vector<RowsResult> results(const StageStep& open, const Batch& batch, const Tensor& logits,
                                  const std::vector<Extended>& extended);
  std::vector<ops::Sampled> draw(TensorView logits, std::span<const ops::SampleRow> rows);  // not checked

  std::unique_ptr<Stage> stage_;
  WorkerPool pool_;
  SingleRank ranks_;
  Workspace workspace_;  // of the operators
  ops::Context context_;
  std::map<SequenceId, SequenceState> states_;
  std::set<SequenceId> broken_;
};

}  // namespace weft
