#include "pipeline/local_executor.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/task_thread.h"
#include "model/state_file.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "executor";

}  // namespace

// A step on its way through the stages.
struct LocalExecutor::OpenStep {
  Ticket ticket;
  StageStep step;
  std::vector<std::promise<Handover>> handovers;  // into stage i
  std::vector<std::future<Handover>> arrivals;    // the other ends
  std::promise<Completion> completion;
  std::future<Completion> completed;
};

// A stage and its thread.
class LocalExecutor::StageWorker {
 public:
  StageWorker(std::unique_ptr<Stage> stage, const LocalExecutorOptions& options, size_t index)
      : runner_(std::move(stage), options), index_(index) {}

  // Tasks run in order on the stage's thread. What one throws (memory for a new sequence) is dropped: its sequence is then
  // unknown here, which the next step of it reports.
  void post(std::function<void()> task) { (void)thread_.post(std::move(task)); }

  [[nodiscard]] Stage& stage() { return runner_.stage(); }
  [[nodiscard]] StageRunner& runner() { return runner_; }  // the stage's thread only

  void run(OpenStep& open) {
    StageRunner::Outcome outcome = runner_.run(open.step, open.arrivals[index_].get());
    if (!stage().last()) {
      open.handovers[index_ + 1].set_value(std::move(outcome.handover));
    } else {
      open.completion.set_value({open.ticket, std::move(outcome.handover.failure), std::move(outcome.results)});
    }
  }

 private:
  StageRunner runner_;
  size_t index_;
  TaskThread thread_;  // last: what it still runs uses the members above
};

LocalExecutor::LocalExecutor(std::vector<std::unique_ptr<Stage>> stages, const LocalExecutorOptions& options) {
  if (stages.empty()) fail(ErrorKind::bad_input, kPlace, "wanted at least one stage, found none");
  LayerIndex expected(0);
  for (const auto& stage : stages) {
    if (stage->layers().begin != expected) {
      fail(ErrorKind::bad_input, kPlace, "wanted a stage that starts at layer {}, found one at layer {}", expected,
           stage->layers().begin);
    }
    expected = stage->layers().end;
  }
  if (expected != LayerIndex(stages.back()->layer_count())) {
    fail(ErrorKind::bad_input, kPlace, "wanted stages up to layer {}, found an end at layer {}", stages.back()->layer_count(),
         expected);
  }
  memory_.limits = {INT64_MAX, INT64_MAX};
  bool pages = false;
  for (const auto& stage : stages) {
    const StatePool& pool = stage->states();
    memory_.limits.slots = std::min(memory_.limits.slots, pool.limits().slots);
    memory_.slot_bytes += pool.layout().slot_bytes();
    if (pool.layout().page_floats() == 0) continue;
    pages = true;
    memory_.limits.pages = std::min(memory_.limits.pages, pool.limits().pages);
    memory_.page_bytes += pool.layout().page_bytes();
  }
  book_.emplace(pages);
  for (size_t i = 0; i < stages.size(); ++i)
    workers_.push_back(std::make_unique<StageWorker>(std::move(stages[i]), options, i));
}

LocalExecutor::~LocalExecutor() = default;

int64_t LocalExecutor::layer_count() const { return workers_.front()->stage().layer_count(); }

int64_t LocalExecutor::stage_count() const { return static_cast<int64_t>(workers_.size()); }

const std::string& LocalExecutor::fingerprint() const { return workers_.front()->stage().states().fingerprint(); }
int64_t LocalExecutor::vocab_size() const { return workers_.front()->stage().vocab_size(); }

ByteCount LocalExecutor::bytes_per_token() const {
  ByteCount sum;
  for (const auto& worker : workers_) sum += worker->stage().bytes_per_token();
  return sum;
}

MemoryUse LocalExecutor::memory() {
  MemoryUse sum;
  std::mutex mutex;
  on_every_stage([&](StageWorker& worker) {
    const MemoryUse part = worker.runner().memory();
    const std::lock_guard lock(mutex);
    sum += part;
  });
  return sum;
}

SequenceId LocalExecutor::create() {
  const SequenceId id = book_->new_id();
  for (const auto& worker : workers_) {
    worker->post([worker = worker.get(), id] { worker->runner().create(id); });
  }
  book_->ledger().create(id);
  return id;
}

SequenceId LocalExecutor::fork(SequenceId sequence) {
  (void)book_->ledger().consumed(sequence);
  const SequenceId id = book_->new_id();
  on_every_stage([&](StageWorker& worker) { worker.runner().fork(sequence, id); });
  book_->ledger().fork(sequence, id);
  return id;
}

void LocalExecutor::release(SequenceId sequence) {
  book_->ledger().release(sequence);
  for (const auto& worker : workers_) {
    worker->post([worker = worker.get(), sequence] { worker->runner().forget(sequence); });
  }
}

TokenCount LocalExecutor::consumed(SequenceId sequence) const { return book_->ledger().consumed(sequence); }

Ticket LocalExecutor::submit(Step step) {
  auto open = std::make_shared<OpenStep>();
  open->step = book_->take(std::move(step));
  open->ticket = Ticket(next_ticket_++);
  open->handovers.resize(workers_.size());
  for (std::promise<Handover>& handover : open->handovers) open->arrivals.push_back(handover.get_future());
  open->completed = open->completion.get_future();
  open->handovers.front().set_value({});
  open_.push_back(open);
  for (const auto& worker : workers_) {
    worker->post([worker = worker.get(), open] { worker->run(*open); });
  }
  return open->ticket;
}

Completion LocalExecutor::next() {
  if (open_.empty()) fail(ErrorKind::internal, kPlace, "wanted an open step, found none");
  Completion completion = open_.front()->completed.get();
  if (completion.failure) {
    // Some stages may have made them.
    for (const std::vector<SequenceId>& ids : open_.front()->step.checkpoint_ids)
      std::ranges::for_each(ids, [&](SequenceId id) { release(id); });
  }
  open_.pop_front();
  return completion;
}

void LocalExecutor::on_every_stage(const std::function<void(StageWorker&)>& task) {
  std::vector<std::future<std::optional<Failure>>> done;
  for (const auto& worker : workers_) {
    auto promise = std::make_shared<std::promise<std::optional<Failure>>>();
    done.push_back(promise->get_future());
    worker->post([worker = worker.get(), promise, &task] { promise->set_value(guard([&] { task(*worker); })); });
  }
  std::optional<Failure> first;
  for (auto& future : done) {
    const std::optional<Failure> failure = future.get();
    if (failure && !first) first = failure;
  }
  if (first) first->raise();
}

SavedState LocalExecutor::snapshot(SequenceId sequence, std::span<const int32_t> ids) {
  const TokenCount count = consumed(sequence);
  std::mutex mutex;
  SequenceState::Tensors all;
  on_every_stage([&](StageWorker& worker) {
    SequenceState::Tensors part = worker.runner().state(sequence).export_tensors();
    const std::lock_guard lock(mutex);
    all.merge(part);
  });
  return {{fingerprint(), count, layer_count(), {ids.begin(), ids.end()}}, std::move(all)};
}

SequenceId LocalExecutor::restore(const StateFile& file) {
  const SequenceId id = book_->new_id();
  try {
    on_every_stage([&](StageWorker& worker) {
      file.require(worker.stage().states().fingerprint(), worker.stage().layer_count());
      worker.runner().restore(id, file.header().consumed, file.tensors());
    });
  } catch (...) {
    for (const auto& worker : workers_) {
      worker->post([worker = worker.get(), id] { worker->runner().forget(id); });
    }
    throw;
  }
  book_->ledger().create(id, file.header().consumed);
  return id;
}

}  // namespace weft
