#include "pipeline/stage_runner.h"

#include <utility>

#include "base/error.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "executor";

}  // namespace

StageRunner::StageRunner(std::unique_ptr<Stage> stage, const StageRunnerOptions& options)
    : stage_(std::move(stage)), pool_(options.threads), workspace_(stage_->device(), stage_->operator_memory()) {
  context_.backend = options.backend;
  context_.profile = options.profile;
  context_.pool = &pool_;
  context_.comm = &ranks_;
  context_.device = &stage_->device();
  context_.workspace = &workspace_;
}

MemoryUse StageRunner::memory() const {
  MemoryUse use = stage_->memory();
  if (!stage_->device().is_host()) use.gpu_used.workspace += workspace_.most_used();
  return use;
}

void StageRunner::create(SequenceId sequence) { states_.emplace(sequence, stage_->states()); }

void StageRunner::fork(SequenceId sequence, SequenceId as) { states_.emplace(as, state(sequence).fork()); }

void StageRunner::forget(SequenceId sequence) {
  states_.erase(sequence);
  broken_.erase(sequence);
}

void StageRunner::forget_all() {
  states_.clear();
  broken_.clear();
}

SequenceState& StageRunner::state(SequenceId sequence) {
  const auto at = states_.find(sequence);
  if (at == states_.end() || broken_.contains(sequence)) {
    fail(ErrorKind::unavailable, kPlace, "sequence {}: wanted a usable state, found that an earlier step of it failed",
         sequence);
  }
  return at->second;
}

void StageRunner::restore(SequenceId sequence, TokenCount consumed, const std::map<std::string, TensorView>& tensors) {
  states_.emplace(sequence, SequenceState::import_tensors(stage_->states(), consumed, tensors));
}

Stage::Output StageRunner::forward(const StageStep& open, Handover in, Batch& batch, std::vector<Extended>& extended) {
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

std::vector<RowsResult> StageRunner::results(const StageStep& open, const Batch& batch, const Tensor& logits,
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
                     request.mask.valid() ? request.mask.get() : request.allowed, request.prompt, request.bias});
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
  for (size_t i = 0; i < draws.size(); ++i) {
    RowsResult& result = made[drawn_entries[i]];
    ops::check_sampled(*result.sampled, draws[i]);
    const int64_t top = open.step.rows[drawn_entries[i]].sample->top;
    if (top > 0) result.top = ops::most_likely(stage_->device().fetch(rows_of(drawn_rows[i], 1)).view().as<float>(), top);
  }
  return made;
}

std::vector<ops::Sampled> StageRunner::draw(TensorView logits, std::span<const ops::SampleRow> rows) {
  const Workspace::Scope scope(workspace_);
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(ops::Sampled));
  const MutableTensorView out = workspace_.take({bytes}, DType::u8);
  ops::sample(context_, logits, rows, {reinterpret_cast<ops::Sampled*>(out.data), rows.size()});
  std::vector<ops::Sampled> drawn(rows.size());
  stage_->device().download(reinterpret_cast<std::byte*>(drawn.data()), out.data, bytes);
  return drawn;
}

StageRunner::Outcome StageRunner::run(const StageStep& open, Handover in) noexcept {
  Outcome outcome;
  Batch batch;
  std::vector<Extended> extended;
  outcome.handover.failure = guard([&] {
    Stage::Output output = forward(open, std::move(in), batch, extended);
    if (stage_->last()) outcome.results = results(open, batch, output.logits, extended);
    outcome.handover.boundary = std::move(output.boundary);
  });
  if (outcome.handover.failure) {
    outcome.results.clear();
    for (const Extended& entry : extended) entry.state->fail_step();
    for (const Rows& rows : open.step.rows) broken_.insert(rows.sequence);
  }
  return outcome;
}

}  // namespace weft
