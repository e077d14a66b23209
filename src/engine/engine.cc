#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/system_memory.h"
#include "ops/ops.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "engine";
constexpr int64_t kLogitsRows = 64;            // prompt rows of one step of a request that wants their logits
constexpr int64_t kGrowth = ops::kPageTokens;  // generated tokens for which an admitted request needs room at once

double seconds_since(Request::Clock::time_point then) {
  return std::chrono::duration<double>(Request::Clock::now() - then).count();
}

void check_options(const EngineOptions& options) {
  const auto at_least = [](std::string_view name, int64_t low, int64_t value) {
    if (value < low) fail(ErrorKind::bad_input, kPlace, "{}: wanted at least {}, found {}", name, low, value);
  };
  at_least("max_context", 2, options.max_context);
  at_least("prefill_chunk", 1, options.prefill_chunk);
  at_least("max_running", 1, options.max_running);
  at_least("max_queue", 1, options.max_queue);
  at_least("state_memory", 0, options.state_memory.value);
  at_least("keep_every", 0, options.keep_every);
  at_least("micro_batch", 0, options.micro_batch);
  at_least("max_in_flight", 0, options.max_in_flight);
  at_least("disk", 0, options.disk.value);
}

// Tokens of the longest sequence that fits (E5).
int64_t longest_sequence(const StateMemory& memory, const StateLedger& states, ByteCount budget) {
  const StateUse one = states.whole(TokenCount(1));
  if (memory.bytes(one) > budget || memory.limits.slots < one.slots || memory.limits.pages < one.pages) {
    fail(ErrorKind::unavailable, kPlace, "state memory: wanted at least {} bytes for one sequence, found {}",
         with_commas(memory.bytes(one).value), with_commas(budget.value));
  }
  if (one.pages == 0) return INT64_MAX;
  const int64_t by_bytes =
      memory.page_bytes.value == 0 ? INT64_MAX : (budget - memory.slot_bytes).value / memory.page_bytes.value;
  return std::min({by_bytes, memory.limits.pages, INT64_MAX / ops::kPageTokens}) * ops::kPageTokens;
}

// One whole context of stored states takes a quarter of the budget and of the slots (S2).
int64_t automatic_interval(const StateMemory& memory, ByteCount budget, int64_t context) {
  const int64_t by_bytes = budget.value / 4 / std::max<int64_t>(1, memory.slot_bytes.value);
  const int64_t states = std::max<int64_t>(1, std::min(by_bytes, memory.limits.slots / 4));
  return std::max<int64_t>(ops::kPageTokens, (context + states - 1) / states);
}

void check_choice(const GenerateRequest& request, int64_t vocab) {
  int32_t before = -1;
  for (const auto& [id, bias] : request.bias) {
    if (id <= before || id >= vocab)
      fail(ErrorKind::bad_input, "logit_bias", "wanted ids that ascend in [0, {}), found {} behind {}", vocab, id, before);
    if (!(std::fabs(bias) <= 100.0F))
      fail(ErrorKind::bad_input, "logit_bias", "id {}: wanted a number in [-100, 100], found {}", id, bias);
    before = id;
  }
  if (request.top < 0 || request.top > vocab)
    fail(ErrorKind::bad_input, "top_logprobs", "wanted a number in [0, {}], found {}", vocab, request.top);
}

}  // namespace

Engine::Engine(Executor& executor, const EngineOptions& options)
    : executor_(executor), options_(options), store_(executor, {options.folder, options.disk}) {
  check_options(options_);
  state_memory_ = options_.state_memory > ByteCount(0) ? options_.state_memory : ByteCount(available_memory() / 4);
  const StateMemory memory = executor_.state_memory();
  context_limit_ = std::min(options_.max_context, longest_sequence(memory, executor_.states(), state_memory_));
  keep_every_ = options_.keep_every > 0 ? options_.keep_every : automatic_interval(memory, state_memory_, context_limit_);
}

Engine::~Engine() {
  static_cast<void>(guard([&] {
    end_all(RequestEnd::cancelled);
    while (!open_.empty()) complete();
    store_.flush();
  }));
}

RequestId Engine::submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  const auto prompt = static_cast<int64_t>(request.ids.size());
  if (prompt == 0) fail(ErrorKind::bad_input, "prompt", "wanted at least one token, found none");
  for (const int32_t id : request.ids) {
    if (id < 0 || id >= executor_.vocab_size())
      fail(ErrorKind::bad_input, "prompt", "wanted ids in [0, {}), found {}", executor_.vocab_size(), id);
  }
  request.sampling.validate();
  check_choice(request, executor_.vocab_size());
  if (prompt >= context_limit_) {
    fail(ErrorKind::bad_input, "prompt", "wanted at most {} tokens (a context of {}{}), found {}", context_limit_ - 1,
         context_limit_, context_limit_ < options_.max_context ? ", which is what the state memory holds" : "", prompt);
  }
  if (request.max_tokens.value_or(1) < 1)
    fail(ErrorKind::bad_input, "max_tokens", "wanted at least 1, found {}", *request.max_tokens);
  if (queue_full()) {
    fail(ErrorKind::unavailable, kPlace, "wanted room in the queue, found {} requests waiting", queue_.size());
  }
  const int64_t budget = std::min(request.max_tokens.value_or(INT64_MAX), context_limit_ - prompt);
  sink->on_submit(budget);
  const RequestId id(next_id_++);
  queue_.push_back(std::make_shared<Request>(id, std::move(request), budget, std::move(sink)));
  return id;
}

void Engine::cancel(RequestId id) {
  for (const auto* list : {&queue_, &running_}) {
    const auto found = std::ranges::find(*list, id, [](const RequestPtr& request) { return request->id(); });
    if (found == list->end()) continue;
    finish(RequestPtr(*found), RequestEnd::cancelled);
    return;
  }
}

double Engine::state_share() const {
  const ByteCount held = executor_.state_memory().bytes(executor_.states().held());
  return static_cast<double>(held.value) / static_cast<double>(state_memory_.value);
}

bool Engine::step() {
  bool advanced = false;
  const std::optional<Failure> failure = guard([&] { advanced = advance(); });
  if (failure) {
    if (!executor_.trouble()) broken_ = failure;
    end_all(RequestEnd::failed, failure);
  } else if (advanced) {
    broken_.reset();
  }
  return advanced;
}

bool Engine::advance() {
  expire();
  admit();
  // A further step keeps the stages of a pipeline busy; on one stage it would only delay what comes in meanwhile.
  const int64_t stages = executor_.stage_count();
  const int64_t usual = stages > 1 ? stages + 1 : 1;
  const auto most = static_cast<size_t>(options_.max_in_flight > 0 ? options_.max_in_flight : usual);
  if (!options_.by_round || open_.empty()) {
    while (open_.size() < most && submit_step()) {
    }
  }
  if (open_.empty()) {
    // Nothing to do beside the file that the first of the queue waits for.
    if (waits_for_file_) store_.wait_for_read();
    return waits_for_file_;
  }
  complete();
  return true;
}

void Engine::expire() {
  if (!options_.queue_seconds && !options_.request_seconds) return;
  std::vector<RequestPtr> late;
  const auto over = [](const Request& request, const std::optional<double>& limit) {
    return limit && seconds_since(request.asked_at()) >= *limit;
  };
  for (const RequestPtr& request : queue_) {
    const bool waits = !request->admitted_before();
    if ((waits && over(*request, options_.queue_seconds)) || over(*request, options_.request_seconds)) late.push_back(request);
  }
  for (const RequestPtr& request : running_) {
    if (over(*request, options_.request_seconds)) late.push_back(request);
  }
  for (const RequestPtr& request : late) finish(request, RequestEnd::timeout);
}

bool Engine::fits(StateUse use) const {
  const StateMemory memory = executor_.state_memory();
  return use.slots <= memory.limits.slots && use.pages <= memory.limits.pages && memory.bytes(use) <= state_memory_;
}

bool Engine::make_room(const std::function<StateUse()>& needed) {
  while (!fits(executor_.states().held() + needed())) {
    if (!store_.evict()) return false;
  }
  return true;
}

void Engine::admit() {
  waits_for_file_ = false;
  while (!queue_.empty() && !admission_waits_ && running() < options_.max_running) {
    const RequestPtr request = queue_.front();
    // Behind one token there is nothing to reuse.
    const std::span<const int32_t> known = request->prompt_logits() ? request->ids().first(1) : request->ids();
    PrefixStore::Found found = store_.resume(known, [&](StateUse use) { return make_room([&] { return use; }); });
    waits_for_file_ = found.waits;
    if (waits_for_file_) return;
    // One that has the engine to itself always fits (E5).
    if (!running_.empty() && !fits_beside_running(*request, found.sequence.id())) {
      admission_waits_ = true;
      return;
    }
    const TokenCount start = executor_.consumed(found.sequence.id());
    request->admit(std::move(found.sequence), start, found.from);
    running_.splice(running_.end(), queue_, queue_.begin());
  }
}

bool Engine::fits_beside_running(const Request& request, SequenceId sequence) const {
  std::vector<SequenceId> sequences = {sequence};
  StateUse sum = outstanding(request, sequence);
  for (const RequestPtr& other : running_) {
    sequences.push_back(other->sequence());
    sum = sum + outstanding(*other, other->sequence());
  }
  return fits(executor_.states().held_by(sequences) + sum);
}

StateUse Engine::outstanding(const Request& request, SequenceId sequence) const {
  const int64_t left = static_cast<int64_t>(request.ids().size()) - executor_.consumed(sequence).value;
  return executor_.states().needed(sequence, left + std::min(kGrowth, request.budget_left()), 0);
}

bool Engine::submit_step() {
  const auto reads = [&](const RequestPtr& request) { return request->feeding() && remaining(*request) > 1; };
  int64_t readers = std::ranges::count_if(running_, reads);
  int64_t prefill = options_.prefill_chunk;
  // Enough steps for every stage to have one (distributed.md 6.4).
  const int64_t stages = executor_.stage_count();
  int64_t draws = stages == 1 ? running() : (running() + 2 * stages - 1) / (2 * stages);
  if (options_.micro_batch > 0) draws = options_.micro_batch;
  Step step;
  OpenStep open;
  StateUse planned;
  const std::vector<RequestPtr> order(running_.begin(), running_.end());
  for (const RequestPtr& request : order) {
    if (!request->feeding() || (request->alone() && !step.rows.empty())) continue;
    const bool reading = reads(request);
    // Equal shares: every prompt moves on in every step (E4).
    const int64_t share = reading ? (prefill + readers - 1) / readers : draws;
    if (reading) --readers;
    if (share == 0) continue;
    int64_t count = reading ? std::min(share, remaining(*request)) : 1;
    if (request->prompt_logits()) count = std::min(count, kLogitsRows);
    const int64_t start = position(*request);
    std::optional<Rows> rows;
    const std::optional<Failure> failure = guard([&] {
      if (request->sink().ready()) rows = plan_rows(*request, count, planned);
    });
    if (failure) finish(request, RequestEnd::failed, failure);
    if (!rows) continue;
    (reading ? prefill : draws) -= count;
    open.rows.push_back({request, request->attempt(), start, start + count, rows->checkpoints});
    step.rows.push_back(std::move(*rows));
    running_.remove(request);
    running_.push_back(request);
    if (request->alone()) break;
  }
  if (step.rows.empty()) return false;
  step.trace = options_.trace;
  open.ticket = executor_.submit(std::move(step));
  open_.push_back(std::move(open));
  return true;
}

std::optional<Rows> Engine::plan_rows(Request& request, int64_t count, StateUse& planned) {
  const SequenceId sequence = request.sequence();
  const int64_t start = position(request);
  std::vector<int64_t> checkpoints = checkpoints_in(request, start, start + count);
  const auto needed = [&] {
    // The one behind the last row is a fork.
    const auto inner = std::ranges::count_if(checkpoints, [&](int64_t offset) { return offset < count; });
    return planned + executor_.states().needed(sequence, count, inner);
  };
  if (!make_room(needed)) {
    checkpoints.clear();
    while (!make_room(needed)) {
      if (!preempt_for(request)) return std::nullopt;
    }
  }
  planned = needed();
  Rows rows = request.take_rows(TokenCount(start), count);
  rows.checkpoints = std::move(checkpoints);
  return rows;
}

std::vector<int64_t> Engine::checkpoints_in(const Request& request, int64_t start, int64_t end) const {
  std::vector<int64_t> offsets;
  if (!options_.keep_states) return offsets;
  for (int64_t at = (start / keep_every_ + 1) * keep_every_; at <= end; at += keep_every_) offsets.push_back(at - start);
  const int64_t before_last = request.prompt_size() - 1;
  if (options_.keep_prompt_end && before_last > start && before_last <= end && before_last % keep_every_ != 0) {
    offsets.push_back(before_last - start);
    std::ranges::sort(offsets);
  }
  return offsets;
}

bool Engine::preempt_for(Request& request) {
  RequestPtr youngest;
  for (const RequestPtr& other : running_) {
    if (other->open_rows() == 0 && (!youngest || other->id() > youngest->id())) youngest = other;
  }
  if (running_.size() == 1 && request.open_rows() == 0) {
    fail(ErrorKind::unavailable, kPlace, "state memory: wanted room for {} tokens of one sequence in {} bytes, found {} in use",
         position(request), with_commas(state_memory_.value),
         with_commas(executor_.state_memory().bytes(executor_.states().held()).value));
  }
  if (!youngest || youngest->id() < request.id()) return false;  // those before it come first
  const bool itself = youngest.get() == &request;
  send_back(youngest, false);
  return !itself;
}

void Engine::complete() {
  // Off the list whatever next() says: an executor that throws gives no second answer for the step.
  const OpenStep step = std::move(open_.front());
  open_.pop_front();
  const Completion done = executor_.next();
  if (done.ticket != step.ticket)
    fail(ErrorKind::internal, kPlace, "wanted the completion of step {}, found that of {}", step.ticket, done.ticket);
  for (const OpenRows& rows : step.rows) {
    if (!rows.stale()) rows.request->close_rows();
  }
  if (done.failure) {
    contain_failure(step, *done.failure);
    return;
  }
  for (size_t i = 0; i < step.rows.size(); ++i) take_result(step.rows[i], done.results[i]);
}

void Engine::take_result(const OpenRows& rows, const RowsResult& result) {
  const RequestPtr& request = rows.request;
  for (size_t i = 0; i < result.checkpoints.size(); ++i) {
    keep(request->ids().first(static_cast<size_t>(rows.start + rows.checkpoints[i])),
         OwnedSequence(executor_, result.checkpoints[i]));
  }
  if (rows.stale()) return;
  std::optional<RequestEnd> end;
  const std::optional<Failure> failure = guard([&] {
    const int64_t prompt = request->prompt_size();
    if (rows.start < prompt) request->sink().on_prompt(std::min(rows.end, prompt), prompt);
    if (request->prompt_logits() && rows.start < prompt) request->sink().on_prompt_logits(rows.start, result.logits.view());
    if (result.sampled) end = request->accept(*result.sampled, result.top);
  });
  if (failure) {
    finish(request, RequestEnd::failed, failure);
  } else if (end) {
    finish(request, *end);
  }
}

void Engine::contain_failure(const OpenStep& step, const Failure& failure) {
  // No request's fault: all of them have state on that stage.
  const bool stages_lost = failure.kind == ErrorKind::stage_lost || failure.kind == ErrorKind::stage_timeout;
  for (const OpenRows& rows : step.rows) {
    if (rows.stale()) continue;
    if (step.rows.size() == 1 || stages_lost) {
      finish(rows.request, RequestEnd::failed, failure);
    } else {
      send_back(rows.request, true);  // whose fault it was shows when each runs by itself (E8)
    }
  }
}

void Engine::end_all(RequestEnd end, const std::optional<Failure>& failure) {
  while (!queue_.empty()) finish(queue_.front(), end, failure);
  while (!running_.empty()) finish(running_.front(), end, failure);
}

void Engine::keep(std::span<const int32_t> ids, OwnedSequence sequence) {
  if (options_.keep_states) store_.keep(ids, std::move(sequence));
}

void Engine::send_back(const RequestPtr& request, bool alone) {
  const auto consumed = static_cast<size_t>(position(*request));
  OwnedSequence sequence = request->go_back(alone);
  const auto behind = std::ranges::find_if(queue_, [&](const RequestPtr& other) { return other->id() > request->id(); });
  queue_.splice(behind, running_, std::ranges::find(running_, request));
  admission_waits_ = !alone;
  if (!alone) keep(request->ids().first(consumed), std::move(sequence));
}

void Engine::finish(const RequestPtr& request, RequestEnd end, const std::optional<Failure>& failure) {
  // `request` may lie in the lists that it leaves. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const RequestPtr alive = request;
  std::optional<OwnedSequence> sequence = request->end(end, failure);
  queue_.remove(alive);
  running_.remove(alive);
  admission_waits_ = false;
  if (sequence && !failure) {
    const auto consumed = static_cast<size_t>(executor_.consumed(sequence->id()).value);
    keep(alive->ids().first(consumed), std::move(*sequence));
  }
  sequence.reset();
  static_cast<void>(guard([&] { alive->sink().on_end(alive->report()); }));
}

}  // namespace weft
