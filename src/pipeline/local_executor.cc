#include "pipeline/local_executor.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/task_thread.h"
#include "model/state_file.h"
#include "parallel/communicator.h"
#include "tensor/workspace.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "executor";

// What one stage hands to the next: a boundary, nothing (before the first stage), or why there is none.
struct Handover {
  std::optional<Boundary> boundary;
  std::optional<Failure> failure;
};

}  // namespace

// A step on its way through the stages.
struct LocalExecutor::OpenStep {
  Ticket ticket;
  Step step;
  std::vector<std::vector<SequenceId>> checkpoint_ids;  // of each rows entry
  std::vector<std::promise<Handover>> handovers;        // into stage i
  std::vector<std::future<Handover>> arrivals;          // the other ends
  std::promise<Completion> completion;
  std::future<Completion> completed;
};

// A stage, its thread, and the states of all sequences on it.
class LocalExecutor::StageWorker {
 public:
  StageWorker(std::unique_ptr<Stage> stage, const LocalExecutorOptions& options, size_t index)
      : stage_(std::move(stage)),
        index_(index),
        pool_(options.threads),
        workspace_(stage_->device(), stage_->operator_memory()) {
    context_.backend = options.backend;
    context_.profile = options.profile;
    context_.pool = &pool_;
    context_.comm = &ranks_;
    context_.device = &stage_->device();
    context_.workspace = &workspace_;
  }

  // Tasks run in order on the stage's thread. What one throws (memory for a new sequence) is dropped: its sequence is then
  // unknown here, which the next step of it reports.
  void post(std::function<void()> task) { (void)thread_.post(std::move(task)); }

  [[nodiscard]] Stage& stage() { return *stage_; }
  [[nodiscard]] MemoryUse memory() const {
    MemoryUse use = stage_->memory();
    if (!stage_->device().is_host()) use.gpu_used.workspace += workspace_.most_used();
    return use;
  }
  [[nodiscard]] std::map<SequenceId, SequenceState>& states() { return states_; }
  [[nodiscard]] SequenceState& state(SequenceId sequence) {
    const auto at = states_.find(sequence);
    if (at == states_.end() || broken_.contains(sequence)) {
      fail(ErrorKind::unavailable, kPlace, "sequence {}: wanted a usable state, found that an earlier step of it failed",
           sequence);
    }
    return at->second;
  }
  void forget(SequenceId sequence) {
    states_.erase(sequence);
    broken_.erase(sequence);
  }

  void run(OpenStep& open);

 private:
  struct Extended {
    SequenceState* state;
    int64_t first_logits_row = 0;
    int64_t logits_rows = 0;
  };

  Stage::Output forward(OpenStep& open, Handover in, Batch& batch, std::vector<Extended>& extended);
  std::vector<RowsResult> results(const OpenStep& open, const Batch& batch, const Tensor& logits,
                                  const std::vector<Extended>& extended);
  std::vector<ops::Sampled> draw(TensorView logits, std::span<const ops::SampleRow> rows);  // not checked

  std::unique_ptr<Stage> stage_;
  size_t index_;
  WorkerPool pool_;
  SingleRank ranks_;
  Workspace workspace_;  // of the operators
  ops::Context context_;
  std::map<SequenceId, SequenceState> states_;  // the stage's thread only
  std::set<SequenceId> broken_;                 // likewise
  TaskThread thread_;                           // last: what it still runs uses the members above
};

Stage::Output LocalExecutor::StageWorker::forward(OpenStep& open, Handover in, Batch& batch, std::vector<Extended>& extended) {
  if (in.failure) in.failure->raise();
  batch.trace = open.step.trace;
  batch.routing = open.step.routing;
  for (const Rows& rows : open.step.rows) {
    SequenceState& sequence = state(rows.sequence);
    const auto count = static_cast<int64_t>(rows.ids.size());
    const int64_t first_row = batch.rows();
    batch.groups.push_back(sequence.extend(first_row, count, rows.checkpoints));
    batch.ids.insert(batch.ids.end(), rows.ids.begin(), rows.ids.end());
    Extended& entry = extended.emplace_back(Extended{&sequence, static_cast<int64_t>(batch.logits_rows.size()), 0});
    const bool all = rows.logits == Rows::Logits::all;
    if (all || rows.logits == Rows::Logits::last || rows.sample) {
      for (int64_t row = all ? 0 : count - 1; row < count; ++row) batch.logits_rows.push_back(first_row + row);
    }
    entry.logits_rows = static_cast<int64_t>(batch.logits_rows.size()) - entry.first_logits_row;
  }
  Stage::Output output = stage_->forward(context_, batch, std::move(in.boundary));
  for (size_t i = 0; i < extended.size(); ++i) {
    std::vector<SequenceState> checkpoints = extended[i].state->commit();
    for (size_t j = 0; j < checkpoints.size(); ++j) states_.emplace(open.checkpoint_ids[i][j], std::move(checkpoints[j]));
  }
  return output;
}

std::vector<RowsResult> LocalExecutor::StageWorker::results(const OpenStep& open, const Batch& batch, const Tensor& logits,
                                                            const std::vector<Extended>& extended) {
  const int64_t vocab = stage_->vocab_size();
  const auto rows_of = [&](int64_t first, int64_t count) {
    return TensorView{DType::f32, {count, vocab}, logits.view().data + first * vocab * static_cast<int64_t>(sizeof(float))};
  };
  std::vector<RowsResult> made;
  std::vector<ops::SampleRow> draws;
  std::vector<int64_t> drawn_rows;    // of the logits, of each draw
  std::vector<size_t> drawn_entries;  // whose token it is
  for (size_t i = 0; i < extended.size(); ++i) {
    const Rows& rows = open.step.rows[i];
    RowsResult& result = made.emplace_back();
    result.checkpoints = open.checkpoint_ids[i];
    const Extended& entry = extended[i];
    if (rows.logits != Rows::Logits::none)
      result.logits = stage_->device().fetch(rows_of(entry.first_logits_row, entry.logits_rows));
    if (!rows.sample) continue;
    const SampleRequest& request = *rows.sample;
    draws.push_back({request.params, entry.state->consumed().value, request.history, request.never_penalised,
                     request.mask.valid() ? request.mask.get() : request.allowed, request.prompt});
    drawn_rows.push_back(entry.first_logits_row + entry.logits_rows - 1);
    drawn_entries.push_back(i);
  }
  // Rows that lie together are drawn together: the pool shares them out.
  for (size_t first = 0; first < draws.size();) {
    size_t last = first + 1;
    while (last < draws.size() && drawn_rows[last] == drawn_rows[last - 1] + 1) ++last;
    const std::vector<ops::Sampled> drawn =
        draw(rows_of(drawn_rows[first], static_cast<int64_t>(last - first)), std::span(draws).subspan(first, last - first));
    for (size_t i = first; i < last; ++i) made[drawn_entries[i]].sampled = drawn[i - first];
    first = last;
  }
  // A fault inside a layer says more than the logits that it left.
  stage_->settle(batch);
  for (size_t i = 0; i < draws.size(); ++i) ops::check_sampled(*made[drawn_entries[i]].sampled, draws[i]);
  return made;
}

std::vector<ops::Sampled> LocalExecutor::StageWorker::draw(TensorView logits, std::span<const ops::SampleRow> rows) {
  const Workspace::Scope scope(workspace_);
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(ops::Sampled));
  const MutableTensorView out = workspace_.take({bytes}, DType::u8);
  ops::sample(context_, logits, rows, {reinterpret_cast<ops::Sampled*>(out.data), rows.size()});
  std::vector<ops::Sampled> drawn(rows.size());
  stage_->device().download(reinterpret_cast<std::byte*>(drawn.data()), out.data, bytes);
  return drawn;
}

void LocalExecutor::StageWorker::run(OpenStep& open) {
  Handover in = open.arrivals[index_].get();
  Batch batch;
  std::vector<Extended> extended;
  Stage::Output output;
  std::vector<RowsResult> made;
  const std::optional<Failure> failure = guard([&] {
    output = forward(open, std::move(in), batch, extended);
    if (stage_->last()) made = results(open, batch, output.logits, extended);
  });
  if (failure) {
    for (const Extended& entry : extended) entry.state->fail_step();
    for (const Rows& rows : open.step.rows) broken_.insert(rows.sequence);
  }
  if (!stage_->last()) {
    open.handovers[index_ + 1].set_value({std::move(output.boundary), failure});
  } else {
    open.completion.set_value({open.ticket, failure, std::move(made)});
  }
}

std::vector<RowsResult> Executor::run(Step step) {
  const Ticket ticket = submit(std::move(step));
  Completion completion = next();
  if (completion.ticket != ticket) {
    fail(ErrorKind::internal, kPlace, "wanted the completion of step {}, found that of step {}", ticket, completion.ticket);
  }
  if (completion.failure) completion.failure->raise();
  return std::move(completion.results);
}

void Executor::save(SequenceId sequence, const std::filesystem::path& path, std::span<const int32_t> ids) {
  const SavedState state = snapshot(sequence, ids);
  write_state_file(path, state.header, state.tensors);
}

SequenceId Executor::load(const std::filesystem::path& path) { return restore(StateFile(path)); }

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
  states_.emplace(pages);
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
    const MemoryUse part = worker.memory();
    const std::lock_guard lock(mutex);
    sum += part;
  });
  return sum;
}

SequenceId LocalExecutor::create() {
  const SequenceId id(next_sequence_++);
  for (const auto& worker : workers_) {
    worker->post([worker = worker.get(), id] { worker->states().emplace(id, worker->stage().states()); });
  }
  states_->create(id);
  return id;
}

SequenceId LocalExecutor::fork(SequenceId sequence) {
  (void)states_->consumed(sequence);
  const SequenceId id(next_sequence_++);
  on_every_stage([&](StageWorker& worker) { worker.states().emplace(id, worker.state(sequence).fork()); });
  states_->fork(sequence, id);
  return id;
}

void LocalExecutor::release(SequenceId sequence) {
  states_->release(sequence);
  for (const auto& worker : workers_) {
    worker->post([worker = worker.get(), sequence] { worker->forget(sequence); });
  }
}

TokenCount LocalExecutor::consumed(SequenceId sequence) const { return states_->consumed(sequence); }

Ticket LocalExecutor::submit(Step step) {
  if (step.rows.empty()) fail(ErrorKind::bad_input, kPlace, "wanted rows of at least one sequence, found none");
  std::set<SequenceId> seen;
  for (const Rows& rows : step.rows) {
    (void)states_->consumed(rows.sequence);
    if (rows.ids.empty())
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted at least one token, found none", rows.sequence);
    if (!seen.insert(rows.sequence).second) {
      fail(ErrorKind::bad_input, kPlace, "wanted each sequence once in a step, found sequence {} twice", rows.sequence);
    }
    if (rows.sample) rows.sample->params.validate();
  }
  auto open = std::make_shared<OpenStep>();
  open->ticket = Ticket(next_ticket_++);
  open->step = std::move(step);
  for (const Rows& rows : open->step.rows) {
    std::vector<SequenceId>& ids = open->checkpoint_ids.emplace_back();
    for (size_t i = 0; i < rows.checkpoints.size(); ++i) ids.emplace_back(next_sequence_++);
    states_->extend(rows.sequence, static_cast<int64_t>(rows.ids.size()), rows.checkpoints, ids);
  }
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
    for (const std::vector<SequenceId>& ids : open_.front()->checkpoint_ids)
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
    SequenceState::Tensors part = worker.state(sequence).export_tensors();
    const std::lock_guard lock(mutex);
    all.merge(part);
  });
  return {{fingerprint(), count, layer_count(), {ids.begin(), ids.end()}}, std::move(all)};
}

SequenceId LocalExecutor::restore(const StateFile& file) {
  const SequenceId id(next_sequence_++);
  try {
    on_every_stage([&](StageWorker& worker) {
      file.require(worker.stage().states().fingerprint(), worker.stage().layer_count());
      worker.states().emplace(id,
                              SequenceState::import_tensors(worker.stage().states(), file.header().consumed, file.tensors()));
    });
  } catch (...) {
    for (const auto& worker : workers_) {
      worker->post([worker = worker.get(), id] { worker->forget(id); });
    }
    throw;
  }
  states_->create(id, file.header().consumed);
  return id;
}

}  // namespace weft
