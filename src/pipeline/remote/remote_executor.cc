#include "pipeline/remote/remote_executor.h"

#include <utility>

#include "model/state_file.h"
#include "pipeline/remote/remote_pipeline.h"

namespace weft {
namespace {

using namespace coordinator;
constexpr std::string_view kPlace = kPipelinePlace;

// The layer of "layers.{l}.{name}".
std::optional<LayerIndex> layer_of_state(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t layer = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9' || layer > INT32_MAX) break;
    layer = layer * 10 + (c - '0');
  }
  return LayerIndex(layer);
}

}  // namespace

RemoteExecutor::RemoteExecutor(RemoteOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
RemoteExecutor::~RemoteExecutor() = default;

int64_t RemoteExecutor::layer_count() const { return impl_->plan->layer_count; }
int64_t RemoteExecutor::vocab_size() const { return impl_->options.config->vocab_size; }
int64_t RemoteExecutor::stage_count() const { return static_cast<int64_t>(impl_->peers.size()); }
const std::string& RemoteExecutor::fingerprint() const { return impl_->fingerprint; }
const StateLedger& RemoteExecutor::states() const { return impl_->book->ledger(); }
const Plan& RemoteExecutor::plan() const { return *impl_->plan; }
TokenCount RemoteExecutor::consumed(SequenceId sequence) const { return impl_->book->ledger().consumed(sequence); }

// Written again when lost stages come back.
ByteCount RemoteExecutor::bytes_per_token() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bytes_per_token;
}

StateMemory RemoteExecutor::state_memory() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state_memory;
}

ByteCount RemoteExecutor::weight_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->weight_bytes;
}

bool RemoteExecutor::ready() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->state == Impl::State::ready;
}

std::optional<Failure> RemoteExecutor::trouble() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->state == Impl::State::ready) return std::nullopt;
  return impl_->down_reason;
}

uint64_t RemoteExecutor::epoch() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->epoch;
}

SequenceId RemoteExecutor::create() {
  const std::lock_guard lock(impl_->mutex);
  impl_->require_ready();
  const SequenceId id = impl_->book->new_id();
  wire::Decision decision;
  decision.set_create(id.value);
  impl_->post_all(decision);
  impl_->book->ledger().create(id);
  impl_->living.insert(id);
  return id;
}

SequenceId RemoteExecutor::fork(SequenceId sequence) {
  const std::lock_guard lock(impl_->mutex);
  static_cast<void>(consumed(sequence));
  impl_->require_living(sequence);
  const SequenceId id = impl_->book->new_id();
  wire::Decision decision;
  decision.mutable_fork()->set_sequence(sequence.value);
  decision.mutable_fork()->set_as(id.value);
  impl_->post_all(decision);
  impl_->book->ledger().fork(sequence, id);
  impl_->living.insert(id);
  return id;
}

void RemoteExecutor::release(SequenceId sequence) {
  const std::lock_guard lock(impl_->mutex);
  impl_->book->ledger().release(sequence);
  impl_->living.erase(sequence);
  impl_->dead.erase(sequence);
  // Those of an epoch that is gone are unknown to the stages, which ignore that.
  if (impl_->state != Impl::State::ready) return;
  wire::Decision decision;
  decision.set_release(sequence.value);
  impl_->post_all(decision);
}

Ticket RemoteExecutor::submit(Step step) {
  if (step.trace != nullptr || step.routing != nullptr) {
    fail(ErrorKind::unsupported, kPlace, "a trace or a given routing: wanted stages in this process, found stages elsewhere");
  }
  const std::unique_lock lock(impl_->mutex);
  auto open = std::make_shared<Impl::OpenStep>();
  for (const Rows& rows : step.rows) open->starts.push_back(impl_->book->ledger().consumed(rows.sequence).value);
  open->step = impl_->book->take(std::move(step));
  if (impl_->sampler) open->asked = without_draws(open->step);
  open->ticket = Ticket(impl_->next_ticket++);
  open->submitted = Clock::now();
  open->done.resize(impl_->peers.size());
  for (const Rows& rows : open->step.step.rows) open->rows += static_cast<int64_t>(rows.ids.size());
  impl_->open_steps.push_back(open);
  const std::optional<Failure> refused = guard([&] {
    for (const Rows& rows : open->step.step.rows) impl_->require_living(rows.sequence);
    impl_->require_ready();
  });
  if (refused) {
    open->completion = Completion{open->ticket, refused, {}};
    return open->ticket;
  }
  for (const auto& ids : open->step.checkpoint_ids) impl_->living.insert(ids.begin(), ids.end());
  open->number = impl_->post([&](Impl::Peer& peer, uint64_t number) -> std::function<Frame()> {
    const bool last = static_cast<size_t>(peer.stage) + 1 == impl_->peers.size();
    return [open, number, last] {
      wire::Decision decision;
      decision.set_number(number);
      *decision.mutable_step() = to_wire(open->told(), open->starts, last);
      return message_frame(FrameType::step, decision);
    };
  });
  impl_->changed.notify_all();
  return open->ticket;
}

Completion RemoteExecutor::next() {
  std::unique_lock lock(impl_->mutex);
  if (impl_->open_steps.empty()) fail(ErrorKind::internal, kPlace, "wanted an open step, found none");
  const std::shared_ptr<Impl::OpenStep> open = impl_->open_steps.front();
  impl_->changed.wait(lock, [&] { return open->completion.has_value(); });
  impl_->open_steps.pop_front();
  Completion completion = std::move(*open->completion);
  lock.unlock();
  if (impl_->sampler && !completion.failure) {
    completion.failure = guard([&] { impl_->sampler->draw(open->step, open->starts, completion.results); });
    if (completion.failure) {
      completion.results.clear();
      lock.lock();
      impl_->bury(*open);
      lock.unlock();
    }
  }
  if (completion.failure) {
    for (const std::vector<SequenceId>& ids : open->step.checkpoint_ids)
      std::ranges::for_each(ids, [&](SequenceId id) { release(id); });
  }
  return completion;
}

SavedState RemoteExecutor::snapshot(SequenceId sequence, std::span<const int32_t> ids) {
  std::unique_lock lock(impl_->mutex);
  const TokenCount count = consumed(sequence);
  impl_->require_living(sequence);
  wire::Decision decision;
  decision.set_snapshot(sequence.value);
  const uint64_t number = impl_->post_all(decision);
  const StateUse whole = impl_->book->ledger().whole(count);
  const double transfer = static_cast<double>(impl_->state_memory.bytes(whole).value) / kStateBytesPerSecond;
  const auto call = impl_->wait_for(lock, number, impl_->options.cluster.timeouts.stage + transfer);
  lock.unlock();
  SequenceState::Tensors all;
  for (size_t i = 0; i < call->answers.size(); ++i) {
    for (const auto& [name, view] : state_of(call->frames[i], call->answers[i].names())) {
      all.insert_or_assign(name, Tensor::copy_of(view));
    }
  }
  return {{fingerprint(), count, layer_count(), {ids.begin(), ids.end()}}, std::move(all)};
}

SequenceId RemoteExecutor::restore(const StateFile& file) {
  file.require(fingerprint(), layer_count());
  std::unique_lock lock(impl_->mutex);
  impl_->require_ready();
  const SequenceId id = impl_->book->new_id();
  const TokenCount count = file.header().consumed;
  // Copied once, for the threads that send it.
  std::vector<std::shared_ptr<SequenceState::Tensors>> parts(impl_->peers.size());
  for (size_t s = 0; s < parts.size(); ++s) {
    parts[s] = std::make_shared<SequenceState::Tensors>();
    for (const auto& [name, view] : file.tensors()) {
      const std::optional<LayerIndex> layer = layer_of_state(name);
      if (layer && impl_->plan->stages[s].layers.contains(*layer)) parts[s]->emplace(name, Tensor::copy_of(view));
    }
  }
  const uint64_t number = impl_->post([&](Impl::Peer& peer, uint64_t n) -> std::function<Frame()> {
    return [n, id, count, part = parts[static_cast<size_t>(peer.stage)]] {
      wire::Decision decision;
      decision.set_number(n);
      decision.mutable_restore()->set_sequence(id.value);
      decision.mutable_restore()->set_consumed(count.value);
      std::map<std::string, TensorView> views;
      for (const auto& [name, tensor] : *part) views.emplace(name, tensor.view());
      Frame beside;
      add_state(beside, *decision.mutable_restore()->mutable_names(), views, part);
      Frame frame = message_frame(FrameType::step, decision);
      for (FrameTensor& tensor : beside.tensors) frame.tensors.push_back(std::move(tensor));
      return frame;
    };
  });
  const double transfer =
      static_cast<double>(impl_->state_memory.bytes(impl_->book->ledger().whole(count)).value) / kStateBytesPerSecond;
  const std::optional<Failure> failure =
      guard([&] { impl_->wait_for(lock, number, impl_->options.cluster.timeouts.stage + transfer); });
  if (failure) {
    if (impl_->state == Impl::State::ready) {
      wire::Decision forget;
      forget.set_release(id.value);
      impl_->post_all(forget);
    }
    failure->raise();
  }
  impl_->book->ledger().create(id, count);
  impl_->living.insert(id);
  return id;
}

MemoryUse RemoteExecutor::memory() {
  MemoryUse sum;
  for (const Json& stage : stage_report()) {
    const Json& memory = stage.at("memory");
    sum.trunk += ByteCount(memory.at("trunk_bytes").get<int64_t>());
    sum.experts += ByteCount(memory.at("expert_bytes").get<int64_t>());
    sum.state += ByteCount(memory.at("state_bytes").get<int64_t>());
    sum.workspace += ByteCount(memory.at("workspace_bytes").get<int64_t>());
  }
  return sum;
}

void RemoteExecutor::abandon(const std::string& reason) {
  impl_->go_down({ErrorKind::stage_lost, fmt::format("[{}] {}", coordinator::kPipelinePlace, reason)}, nullptr);
}

Json RemoteExecutor::stage_report() {
  const std::lock_guard asking(impl_->question);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->require_ready();
  }
  Json report = Json::array();
  for (const auto& peer : impl_->peers) {
    wire::Control message;
    message.set_status(true);
    const wire::Control answer = impl_->ask(*peer, message, kAnswerSeconds);
    if (!answer.has_status_reply())
      fail(ErrorKind::bad_input, kPlace, "{}: wanted a status, found another message", peer->name);
    Json stage = status_json(answer.status_reply().SerializeAsString());
    stage["address"] = peer->address.address;
    {
      const std::lock_guard lock(impl_->mutex);
      stage["weight_bytes"] = peer->weight_bytes;
    }
    const PlanStage& planned = impl_->plan->stages[static_cast<size_t>(peer->stage)];
    stage["planned"] = {{"weight_bytes", planned.weights - planned.experts + planned.experts_kept},
                        {"state_bytes", planned.state},
                        {"workspace_bytes", planned.workspace},
                        {"used_bytes", planned.used()}};
    report.push_back(std::move(stage));
  }
  return report;
}

Json status_json(const std::string& encoded_status) {
  wire::Status status;
  if (!status.ParseFromString(encoded_status)) fail(ErrorKind::bad_input, kPlace, "wanted a status, found bytes that are none");
  const double busy = status.compute_seconds();
  const double up = status.up_seconds();
  Json made = {{"node", status.node()},
               {"stage", status.stage()},
               {"state", status.state()},
               {"layers", status.layers()},
               {"device", status.device()},
               {"coordinator", status.coordinator()},
               {"epoch", status.epoch()},
               {"sequences", status.sequences()},
               {"steps", status.steps()},
               {"failures", status.failures()},
               {"last_failure", status.last_failure()},
               {"memory",
                {{"trunk_bytes", status.trunk_bytes()},
                 {"expert_bytes", status.expert_bytes()},
                 {"state_bytes", status.state_bytes()},
                 {"workspace_bytes", status.workspace_bytes()},
                 {"resident_bytes", status.resident_bytes()},
                 {"peak_bytes", status.peak_bytes()}}},
               {"seconds", {{"up", up}, {"compute", busy}, {"wait", status.wait_seconds()}, {"send", status.send_seconds()}}},
               {"idle_share", up > 0.0 ? std::clamp(1.0 - busy / up, 0.0, 1.0) : 1.0},
               {"bytes_sent", status.bytes_sent()},
               {"bytes_received", status.bytes_received()},
               {"bytes_read", status.bytes_read()},
               {"shards", Json::array()}};
  for (const std::string& shard : status.shards()) made["shards"].push_back(shard);
  if (status.gpu_planned_bytes() > 0) {
    made["memory"]["gpu_planned_bytes"] = status.gpu_planned_bytes();
    made["memory"]["gpu_used_bytes"] = status.gpu_used_bytes();
  }
  return made;
}

}  // namespace weft
