// The stages of a model as threads of this process: one stage, or several that pass boundaries on without a copy.
//
// Every stage has a thread with a queue. A decision (create, fork, release, step, save, load) is put into all queues in the
// same order, so the stages need no locks beyond their queues; a step's boundary goes from stage to stage while the next step
// may already run upstream.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/sequence_state.h"
#include "model/stage.h"
#include "ops/context.h"
#include "pipeline/executor.h"
#include "pipeline/sequence_book.h"
#include "pipeline/stage_runner.h"

namespace weft {

using LocalExecutorOptions = StageRunnerOptions;  // of each stage

class LocalExecutor final : public Executor {
 public:
  // `stages` cover [0, L) in order; otherwise bad_input naming the gap.
  LocalExecutor(std::vector<std::unique_ptr<Stage>> stages, const LocalExecutorOptions& options);
  ~LocalExecutor() override;
  LocalExecutor(const LocalExecutor&) = delete;
  LocalExecutor& operator=(const LocalExecutor&) = delete;

  [[nodiscard]] int64_t layer_count() const override;
  [[nodiscard]] int64_t vocab_size() const override;
  [[nodiscard]] int64_t stage_count() const override;
  [[nodiscard]] const std::string& fingerprint() const override;
  [[nodiscard]] ByteCount bytes_per_token() const override;
  [[nodiscard]] StateMemory state_memory() const override { return memory_; }
  [[nodiscard]] const StateLedger& states() const override { return book_->ledger(); }
  [[nodiscard]] MemoryUse memory() override;
  [[nodiscard]] SequenceId create() override;
  [[nodiscard]] SequenceId fork(SequenceId sequence) override;
  void release(SequenceId sequence) override;
  [[nodiscard]] TokenCount consumed(SequenceId sequence) const override;
  Ticket submit(Step step) override;
  [[nodiscard]] Completion next() override;
  [[nodiscard]] SavedState snapshot(SequenceId sequence, std::span<const int32_t> ids) override;
  [[nodiscard]] SequenceId restore(const StateFile& file) override;

 private:
  struct OpenStep;
  class StageWorker;

  // Runs `task` on every stage after all that was submitted before, waits, and throws the first failure.
  void on_every_stage(const std::function<void(StageWorker&)>& task);

  std::vector<std::unique_ptr<StageWorker>> workers_;
  StateMemory memory_;
  std::optional<SequenceBook> book_;
  int64_t next_ticket_ = 1;
  std::deque<std::shared_ptr<OpenStep>> open_;
};

}  // namespace weft
