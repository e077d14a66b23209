// The coordinator's side of a pipeline: connections to all stages, what was asked of them, what has come back, and deadlines.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/task_thread.h"
#include "model/fingerprint.h"
#include "pipeline/remote/chrome_trace.h"
#include "pipeline/remote/coordinator_sampler.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/link_watch.h"
#include "pipeline/remote/messages.h"
#include "pipeline/remote/remote_executor.h"
#include "pipeline/sequence_book.h"

namespace weft {
namespace coordinator {

inline constexpr std::string_view kPipelinePlace = "pipeline";
inline constexpr double kAnswerSeconds = 10.0;           // of what needs no work: handshake, status
inline constexpr double kSecondsPerPrefillToken = 0.02;  // distributed.md 5.10
inline constexpr double kFirstPause = 0.1;               // between tries to connect, doubled
inline constexpr double kLongestPause = 10.0;
inline constexpr double kLookSeconds = 0.1;           // between looks at whether the start is to end
inline constexpr double kStateBytesPerSecond = 10e6;  // slowest transfer of a saved state that is waited for

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

inline double now() { return Seconds(Clock::now().time_since_epoch()).count(); }

inline Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace coordinator

struct RemoteExecutor::Impl {
  struct Peer {
    int64_t stage = 0;
    NodeAddress address;
    std::string name;  // "stage 1 (node stage-1, 10.0.0.12:19001)"
    std::mutex mutex;
    std::condition_variable arrived;
    std::deque<wire::Control> replies;  // guarded by mutex
    std::optional<Failure> lost;        // guarded by mutex
    wire::HelloReply hello;
    wire::Loaded loaded;
    std::vector<ShardDigest> shards;
    // Guarded by the executor's mutex:
    int64_t weight_bytes = 0;
    double clock_offset = 0.0;  // this process's monotonic clock less the stage's
    double last_ended = 0.0;    // of the step before, by the stage's clock
    // Replaced while the stages are not connected only:
    std::shared_ptr<Link> link;
    std::unique_ptr<LinkWatch> watch;
    std::thread reader;
    TaskThread sender;  // last
  };
  struct OpenStep {
    Ticket ticket;
    uint64_t number = 0;
    StageStep step;
    std::vector<int64_t> starts;     // tokens consumed before the rows of each entry
    std::optional<StageStep> asked;  // what the stages are told, where tokens are drawn here
    int64_t rows = 0;

    [[nodiscard]] const StageStep& told() const { return asked ? *asked : step; }
    coordinator::Clock::time_point submitted;
    std::vector<std::optional<coordinator::Clock::time_point>> done;  // by stage
    std::optional<Completion> completion;
  };
  // A decision whose answers are waited for.
  struct Call {
    size_t missing = 0;
    std::optional<Failure> failure;
    std::vector<wire::Done> answers;
    std::vector<Frame> frames;
    coordinator::Clock::time_point deadline;
  };
  enum class State : uint8_t { down, ready };

  explicit Impl(RemoteOptions given) : options(std::move(given)) {
    if (!options.trace.empty()) trace.emplace(options.trace);
    if (options.sample_at == SampleAt::coordinator)
      sampler.emplace(options.sample_backend, options.sample_threads, options.config->vocab_size);
    for (int64_t s = 0; s < options.cluster.stages; ++s) {
      const ClusterNode& node = options.cluster.stage(s);
      auto peer = std::make_unique<Peer>();
      peer->stage = s;
      peer->address = {node.address, node.id};
      peer->name = fmt::format("stage {} (node {}, {})", s, node.id, node.address);
      peers.push_back(std::move(peer));
    }
    boot = random_boot_id();
    connect_all(coordinator::after(options.cluster.timeouts.load));
    starting = false;
    become_ready();
    began = coordinator::now();
    monitor = std::thread([this] { watch_steps(); });
    keeper = std::thread([this] { keep_connected(); });
  }

  ~Impl() {
    if (trace) end_trace();
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      for (const auto& peer : peers) {
        if (!peer->link) continue;
        peer->link->finish();
        peer->link->cancel("the coordinator ended");
      }
    }
    changed.notify_all();
    if (monitor.joinable()) monitor.join();
    if (keeper.joinable()) keeper.join();
    disconnect("the coordinator ended");
    if (trace) close_trace();
  }

  // ---- connecting
  // -------------------------------------------------------------------------------------------------------------

  void say(const std::string& line) const {
    if (options.progress) static_cast<void>(guard([&] { options.progress(line); }));
  }

  // Whether what waits for a stage is to end: the executor does, or its start was interrupted.
  [[nodiscard]] bool gives_up() {
    if (starting && options.interrupted && options.interrupted()) return true;
    const std::lock_guard lock(mutex);
    return stopping;
  }
  void check_given_up() {
    if (gives_up()) fail(ErrorKind::unavailable, coordinator::kPipelinePlace, "stopped while it waited for the stages");
  }

  // A failure at a stage, which names it.
  [[nodiscard]] static Failure failure_at(const Peer& peer, ErrorKind kind, std::string_view message,
                                          std::optional<uint64_t> step = std::nullopt) {
    auto place = std::make_shared<const StagePlace>(StagePlace{peer.stage, peer.address.node, step});
    return {kind, fmt::format("[{}] {}: {}", coordinator::kPipelinePlace, peer.name, message), std::move(place)};
  }

  // Runs `body` for every stage side by side; throws the first failure with the stage's name.
  template <class Body>
  void every_stage(Body body) {
    std::vector<std::optional<Failure>> failures(peers.size());
    std::vector<std::thread> threads;
    for (size_t s = 0; s < peers.size(); ++s) {
      threads.emplace_back([&, s] { failures[s] = guard([&] { body(*peers[s]); }); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t s = 0; s < peers.size(); ++s) {
      if (failures[s]) failure_at(*peers[s], failures[s]->kind, failures[s]->message).raise();
    }
  }

  void connect_peer(Peer& peer, coordinator::Clock::time_point deadline) {
    double pause = coordinator::kFirstPause;
    std::string said;
    std::unique_ptr<MessageStream> stream;
    while (!stream) {
      if (options.before_connect) options.before_connect(peer.stage);
      const double left = coordinator::Seconds(deadline - coordinator::Clock::now()).count();
      try {
        stream = options.connect(peer.address, std::min(options.cluster.timeouts.connect, std::max(left, 0.1)),
                                 [this] { return gives_up(); });
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::unreachable || coordinator::Clock::now() >= deadline) throw;
        if (said != error.what()) say(fmt::format("waiting for {}: {}", peer.name, error.what()));
        said = error.what();
      }
      if (stream) break;
      const coordinator::Clock::time_point next = std::min(deadline, coordinator::after(pause));
      while (coordinator::Clock::now() < next) {
        check_given_up();
        std::unique_lock lock(mutex);
        changed.wait_until(lock, std::min(next, coordinator::after(coordinator::kLookSeconds)), [&] { return stopping; });
      }
      check_given_up();
      pause = std::min(2.0 * pause, coordinator::kLongestPause);
    }
    const ClusterTimeouts& timeouts = options.cluster.timeouts;
    {
      const std::lock_guard lock(mutex);
      if (stopping) fail(ErrorKind::unavailable, coordinator::kPipelinePlace, "the coordinator ends");
      peer.link = std::make_shared<Link>(std::move(stream), options.link);
      peer.last_ended = 0.0;
    }
    {
      const std::lock_guard lock(peer.mutex);
      peer.replies.clear();
      peer.lost.reset();
    }
    peer.watch =
        std::make_unique<LinkWatch>(*peer.link, timeouts.heartbeat_interval,
                                    2.0 * static_cast<double>(timeouts.heartbeat_misses) * timeouts.heartbeat_interval);
    peer.reader = std::thread([this, &peer, link = peer.link] { read(peer, link); });
    wire::Control message;
    wire::Hello& hello = *message.mutable_hello();
    hello = local_hello(options.build);
    hello.set_role(wire::Hello::COORDINATOR);
    hello.set_cluster(options.cluster.name);
    hello.set_node(options.cluster.coordinator().id);
    hello.set_to_node(peer.address.node);
    hello.set_epoch(epoch);
    hello.set_boot(boot);
    hello.set_family(options.config->model_type);
    hello.set_config_sha256(sha256_text(options.config_text));
    hello.set_max_frame(static_cast<uint64_t>(options.link.limits.frame));
    hello.set_max_chunk(static_cast<uint64_t>(options.link.limits.chunk));
    const double asked = coordinator::now();
    const wire::Control answer = ask(peer, message, coordinator::kAnswerSeconds);
    if (!answer.has_hello_reply())
      fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted a handshake, found another message");
    if (answer.hello_reply().has_refused()) from_wire(answer.hello_reply().refused()).raise();
    peer.hello = answer.hello_reply();
    const double offset = 0.5 * (asked + coordinator::now()) - peer.hello.self().steady();
    const std::lock_guard lock(mutex);
    peer.clock_offset = offset;
  }

  void connect_all(coordinator::Clock::time_point deadline) {
    const std::optional<Failure> failure = guard([&] { try_connect_all(deadline); });
    if (!failure) return;
    disconnect("connecting to all stages failed");
    failure->raise();
  }

  void try_connect_all(coordinator::Clock::time_point deadline) {
    every_stage([&](Peer& peer) { connect_peer(peer, deadline); });
    std::string differences;
    bool busy = false;
    std::vector<int64_t> memory;
    uint64_t newest = epoch;
    for (const auto& peer : peers) {
      newest = std::max<uint64_t>(newest, peer->hello.self().epoch());
      busy = busy || !peer->hello.busy().empty();
      const int64_t stated = options.cluster.stage(peer->stage).memory_bytes;
      memory.push_back(stated > 0 ? stated : static_cast<int64_t>(peer->hello.memory()));
      if (peer->hello.differences_size() == 0) continue;
      differences += fmt::format("{}{}: {}", differences.empty() ? "" : "; ", peer->name, differences_text(peer->hello));
    }
    if (!differences.empty()) throw Error(ErrorKind::handshake, coordinator::kPipelinePlace, differences);
    say_operators();
    if (!plan) plan = options.plan(memory);
    if (static_cast<int64_t>(plan->stages.size()) != options.cluster.stages) {
      fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "P07: wanted a plan of {} stages, found {}",
           options.cluster.stages, plan->stages.size());
    }
    {
      const std::lock_guard lock(mutex);
      epoch = newest + 1;
    }
    wire::Plan wired = to_wire(*plan, options.prefill_chunk);
    for (const auto& peer : peers) {
      wired.mutable_stages(static_cast<int>(peer->stage))->set_node(peer->address.node);
      const std::string& elsewhere = peer->hello.self().advertise();
      wired.mutable_stages(static_cast<int>(peer->stage))->set_address(elsewhere.empty() ? peer->address.address : elsewhere);
    }
    every_stage([&](Peer& peer) {
      wire::Control message;
      *message.mutable_survey()->mutable_plan() = wired;
      message.mutable_survey()->set_stage(static_cast<uint32_t>(peer.stage));
      const wire::Control answer = ask(peer, message, left_until(deadline));
      if (!answer.has_survey_reply())
        fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted a list of shards, found another message");
      if (answer.survey_reply().has_failure()) from_wire(answer.survey_reply().failure()).raise();
      peer.shards = shards_of(answer.survey_reply());
    });
    check_shards();
    std::vector<ShardDigest> shards;
    for (const auto& peer : peers) shards.insert(shards.end(), peer->shards.begin(), peer->shards.end());
    const std::string found = combine_fingerprint(options.config_text, shards, plan->profile);
    if (!fingerprint.empty() && found != fingerprint) {
      fail(ErrorKind::bad_checkpoint, coordinator::kPipelinePlace,
           "wanted the model with fingerprint {}, found {}: weights changed meanwhile", fingerprint, found);
    }
    if (fingerprint.empty()) fingerprint = found;  // never written again: whoever asks has a reference
    every_stage([&](Peer& peer) {
      wire::Control message;
      wire::Load& load = *message.mutable_load();
      *load.mutable_plan() = wired;
      load.set_stage(static_cast<uint32_t>(peer.stage));
      load.set_fingerprint(fingerprint);
      load.set_epoch(epoch);
      load.set_stage_timeout(options.cluster.timeouts.stage);
      load.set_compression(static_cast<uint32_t>(options.link.compression));
      const wire::Control answer = ask(peer, message, left_until(deadline));
      if (!answer.has_loaded())
        fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted a loaded stage, found another message");
      if (answer.loaded().has_failure()) from_wire(answer.loaded().failure()).raise();
      peer.loaded = answer.loaded();
      say(fmt::format(
          "{}: layers {}-{} {}", peer.name, plan->stages[static_cast<size_t>(peer.stage)].layers.begin,
          plan->stages[static_cast<size_t>(peer.stage)].layers.end.value - 1,
          peer.loaded.reused() ? "are there still" : fmt::format("loaded, {}", human_bytes(peer.loaded.weight_bytes()))));
    });
    every_stage([&](Peer& peer) {
      wire::Control message;
      message.mutable_connect()->set_epoch(epoch);
      const wire::Control answer = ask(peer, message, options.cluster.timeouts.connect + 2.0 * coordinator::kAnswerSeconds);
      if (!answer.has_connected())
        fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted a connected stage, found another message");
      if (answer.connected().has_failure()) from_wire(answer.connected().failure()).raise();
    });
    take_loaded();
    if (trace) {
      trace->name_stage(-1, "coordinator");
      for (const auto& peer : peers) trace->name_stage(peer->stage, peer->name);
    }
  }

  // Bits are those of one process where all stages compute alike.
  void say_operators() const {
    std::string found;
    bool alike = true;
    for (const auto& peer : peers) {
      alike = alike && peer->hello.operators() == peers.front()->hello.operators();
      found += fmt::format("{}stage {}: {}", found.empty() ? "" : ", ", peer->stage, peer->hello.operators());
    }
    if (!alike) say(fmt::format("note: stages compute with different operators ({}): answers agree within rounding", found));
  }

  // What is left of the load timeout, for a question; a little where it is over.
  [[nodiscard]] static double left_until(coordinator::Clock::time_point deadline) {
    return std::max(0.1, coordinator::Seconds(deadline - coordinator::Clock::now()).count());
  }

  // A shard that two stages have must be one file.
  void check_shards() const {
    std::vector<std::vector<ShardDigest>> holders;
    for (const auto& peer : peers) holders.push_back(peer->shards);
    const std::vector<ShardConflict> conflicts = shard_conflicts(holders);
    if (conflicts.empty()) return;
    const ShardConflict& one = conflicts.front();
    failure_at(*peers[one.second], ErrorKind::bad_checkpoint,
               fmt::format("shard '{}': wanted digest {}, as stage {} (node {}) has it, found {}", one.file, one.wanted,
                           one.first, peers[one.first]->address.node, one.found))
        .raise();
  }

  // What the stages said when they had loaded, together.
  void take_loaded() {
    StateMemory states;
    states.limits = {INT64_MAX, INT64_MAX};
    ByteCount per_token;
    ByteCount weights;
    bool pages = false;
    for (const auto& peer : peers) {
      const wire::Loaded& loaded = peer->loaded;
      states.limits.slots = std::min(states.limits.slots, loaded.slots());
      states.slot_bytes += ByteCount(loaded.slot_bytes());
      per_token += ByteCount(loaded.bytes_per_token());
      weights += ByteCount(loaded.weight_bytes());
      if (loaded.page_bytes() == 0) continue;
      pages = true;
      states.limits.pages = std::min(states.limits.pages, loaded.pages());
      states.page_bytes += ByteCount(loaded.page_bytes());
    }
    const std::lock_guard lock(mutex);
    next_number = 1;
    state_memory = states;
    bytes_per_token = per_token;
    weight_bytes = weights;
    for (const auto& peer : peers) peer->weight_bytes = peer->loaded.weight_bytes();
    if (!book) book.emplace(pages);
  }

  // A question and its answer, in order; one at a time for each stage.
  wire::Control ask(Peer& peer, const wire::Control& message, double seconds) {
    std::shared_ptr<Link> link;
    {
      const std::lock_guard lock(mutex);
      link = peer.link;
      if (!link) down_reason.raise();
    }
    link->send(message_frame(FrameType::control, message));
    const coordinator::Clock::time_point deadline = coordinator::after(seconds);
    std::unique_lock lock(peer.mutex);
    for (;;) {
      const auto until = starting ? std::min(deadline, coordinator::after(coordinator::kLookSeconds)) : deadline;
      if (!peer.arrived.wait_until(lock, until, [&] { return !peer.replies.empty() || peer.lost; })) {
        lock.unlock();
        check_given_up();
        lock.lock();
        if (coordinator::Clock::now() < deadline) continue;
        fail(ErrorKind::stage_timeout, coordinator::kPipelinePlace, "wanted an answer within {:.1f} s, found none", seconds);
      }
      if (peer.replies.empty()) peer.lost->raise();
      wire::Control answer = std::move(peer.replies.front());
      peer.replies.pop_front();
      if (!answer.has_load_progress()) return answer;
      const wire::LoadProgress& progress = answer.load_progress();
      lock.unlock();
      if (options.loading) static_cast<void>(guard([&] { options.loading(peer.stage, progress.done(), progress.total()); }));
      if (progress.done() == 0) say(fmt::format("{}: loading {}", peer.name, human_bytes(progress.total())));
      lock.lock();
    }
  }

  void disconnect(const std::string& reason) {
    for (const auto& peer : peers) {
      const std::shared_ptr<Link> link = peer->link;
      if (!link) continue;
      link->cancel(reason);
      if (peer->reader.joinable()) peer->reader.join();
      peer->sender.post([] {}).wait();
      peer->watch.reset();
      const std::lock_guard lock(mutex);
      peer->link.reset();
    }
  }

  // A link may have been lost since its last answer.
  void become_ready() {
    {
      const std::lock_guard lock(mutex);
      state = State::ready;
    }
    changed.notify_all();
    for (const auto& peer : peers) {
      std::optional<Failure> lost;
      {
        const std::lock_guard lock(peer->mutex);
        lost = peer->lost;
      }
      if (lost) go_down(failure_at(*peer, ErrorKind::stage_lost, lost->message), nullptr);
    }
  }

  void keep_connected() {
    double pause = coordinator::kFirstPause;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || state == State::down; });
      if (stopping) return;
      const std::string reason = down_reason.message;
      lock.unlock();
      disconnect(reason);
      const std::optional<Failure> failure = guard([&] { connect_all(coordinator::after(options.cluster.timeouts.load)); });
      if (failure && !gives_up()) say(fmt::format("not connected: {}", failure->message));
      if (!failure) {
        say(fmt::format("all stages are connected again (epoch {})", epoch));
        become_ready();
        pause = coordinator::kFirstPause;
        lock.lock();
        continue;
      }
      lock.lock();
      changed.wait_for(lock, coordinator::Seconds(pause), [&] { return stopping; });
      pause = std::min(2.0 * pause, coordinator::kLongestPause);
    }
  }

  // ---- what comes back
  // ----------------------------------------------------------------------------------------------------------

  void read(Peer& peer, const std::shared_ptr<Link>& link) {
    std::optional<Failure> failure = guard([&] {
      while (std::optional<Frame> frame = link->receive()) {
        switch (frame->type) {
          case FrameType::control: {
            const std::lock_guard lock(peer.mutex);
            peer.replies.push_back(message_of<wire::Control>(*frame));
            peer.arrived.notify_all();
            break;
          }
          case FrameType::tokens: take_done(peer, *frame); break;
          case FrameType::abort: {
            const auto told = message_of<wire::Failure>(*frame);
            const size_t at = std::min<size_t>(told.stage(), peers.size() - 1);
            go_down(failure_at(*peers[at], from_wire(told).kind, told.message()), link);
            break;
          }
          default:
            fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted an answer, found a frame of type {}",
                 static_cast<int>(frame->type));
        }
      }
      fail(ErrorKind::stage_lost, coordinator::kPipelinePlace, "the stage closed the connection");
    });
    {
      const std::lock_guard lock(peer.mutex);
      peer.lost = failure;
    }
    peer.arrived.notify_all();
    // What is no answer is as good as none.
    go_down(failure_at(peer, ErrorKind::stage_lost, failure->message), link);
  }

  // Ends the epoch, if `link` belongs to it.
  void go_down(Failure failure, const std::shared_ptr<Link>& link) {
    if (failure.kind != ErrorKind::stage_timeout) failure.kind = ErrorKind::stage_lost;
    {
      const std::lock_guard lock(mutex);
      if (state != State::ready || stopping) return;
      if (link && std::ranges::none_of(peers, [&](const auto& peer) { return peer->link == link; })) return;
      state = State::down;
      down_reason = failure;
      for (const SequenceId id : living) dead.insert_or_assign(id, failure);
      living.clear();
      for (const auto& open : open_steps) {
        if (!open->completion) open->completion = Completion{open->ticket, failure, {}};
      }
      for (auto& [number, call] : calls) {
        if (!call->failure) call->failure = failure;
        call->missing = 0;
      }
    }
    changed.notify_all();
    say(failure.message);
  }

  void take_done(Peer& peer, const Frame& frame) {
    const auto done = message_of<wire::Done>(frame);
    const std::lock_guard lock(mutex);
    if (frame.epoch != static_cast<uint32_t>(epoch) || state != State::ready) return;
    // The last stage's answer may be here before those of the others, and the step be over.
    if (trace && done.has_spans()) write_spans(peer, done.number(), done.spans());
    if (const auto call = calls.find(done.number()); call != calls.end()) {
      if (call->second->missing == 0) return;
      if (done.has_failure() && !call->second->failure) call->second->failure = named(done.failure(), done.number());
      call->second->answers.push_back(done);
      call->second->frames.push_back(frame);
      if (--call->second->missing == 0) changed.notify_all();
      return;
    }
    const auto at = std::ranges::find(open_steps, done.number(), [](const auto& open) { return open->number; });
    if (at == open_steps.end()) return;  // a decision that nobody waits for, or a late answer
    OpenStep& open = **at;
    const auto stage = static_cast<size_t>(peer.stage);
    open.done[stage] = coordinator::Clock::now();
    if (open.completion) return;
    if (done.has_failure()) {
      const Failure failure = named(done.failure(), done.number());
      bury(open);
      open.completion = Completion{open.ticket, failure, {}};
    } else if (stage + 1 == peers.size()) {
      open.completion = Completion{open.ticket, std::nullopt, results_of(frame, done, open.told())};
      if (trace) {
        trace->span(-1, "step", coordinator::Seconds(open.submitted.time_since_epoch()).count(), coordinator::now(),
                    done.number(), open.rows);
      }
    } else {
      return;
    }
    changed.notify_all();
  }

  // The compute thread of a stage from the answer before to this one, without a gap; beside it what was sent. Under the mutex.
  void write_spans(Peer& peer, uint64_t number, const wire::Spans& spans) {
    const auto write = [&](std::string_view kind, double begin, double end, uint64_t step, int64_t rows) {
      trace->span(peer.stage, kind, begin + peer.clock_offset, end + peer.clock_offset, step, rows);
    };
    if (peer.last_ended > 0.0) write("answer", peer.last_ended, spans.answered(), number, spans.rows());
    write("idle", spans.answered(), spans.waited(), number, spans.rows());
    write("wait", spans.waited(), spans.began(), number, spans.rows());
    write("compute", spans.began(), spans.ended(), number, spans.rows());
    for (const wire::SentSpan& sent : spans.sent()) write("send", sent.began(), sent.ended(), sent.number(), sent.rows());
    peer.last_ended = spans.ended();
  }

  // What the stages have not told yet: their idle time since the last step, and what they sent last.
  void end_trace() {
    std::unique_lock lock(mutex);
    if (state != State::ready) return;
    wire::Decision probe;
    probe.set_probe(true);
    const std::optional<Failure> failure = guard([&] { wait_for(lock, post_all(probe), coordinator::kAnswerSeconds); });
    trace->span(-1, "run", began, coordinator::now(), next_number - 1, 0);
    if (failure) say(fmt::format("the trace lacks its end: {}", failure->message));
  }

  void close_trace() {
    if (const std::optional<Failure> failure = guard([&] { trace->close(); })) say(failure->message);
  }

  // A failure of one step, with the stage where it arose.
  [[nodiscard]] Failure named(const wire::Failure& failure, uint64_t step) const {
    const size_t at = std::min<size_t>(failure.stage(), peers.size() - 1);
    const Failure told = from_wire(failure);
    return failure_at(*peers[at], told.kind, told.message, step);
  }

  // A step of which nothing can be used: its sequences, and what its checkpoints would have been. Under the mutex.
  void bury(const OpenStep& open) {
    for (const Rows& rows : open.step.step.rows) bury(rows.sequence);
    for (const auto& ids : open.step.checkpoint_ids) std::ranges::for_each(ids, [&](SequenceId id) { bury(id); });
  }
  void bury(SequenceId id) {  // under the mutex
    if (living.erase(id) == 0) return;
    dead.insert_or_assign(
        id, Failure{ErrorKind::unavailable,
                    fmt::format("[executor] sequence {}: wanted a usable state, found that an earlier step of it failed", id)});
  }

  // ---- deadlines
  // ------------------------------------------------------------------------------------------------------------------

  void watch_steps() {
    std::vector<coordinator::Clock::time_point> last_done(peers.size());  // of any step, by stage
    std::unique_lock lock(mutex);
    while (!stopping) {
      changed.wait_for(lock, coordinator::Seconds(0.1), [&] { return stopping; });
      if (open_steps.empty() && calls.empty()) {
        changed.wait(lock, [&] { return stopping || !open_steps.empty() || !calls.empty(); });
        continue;
      }
      if (state != State::ready) continue;
      std::optional<Failure> late;
      for (const auto& open : open_steps) {
        for (size_t s = 0; s < open->done.size(); ++s) {
          if (open->done[s]) last_done[s] = std::max(last_done[s], *open->done[s]);
        }
      }
      for (const auto& open : open_steps) {
        if (open->completion) continue;
        const auto first = std::ranges::find_if(open->done, [](const auto& at) { return !at.has_value(); });
        if (first == open->done.end()) continue;
        const auto s = static_cast<size_t>(first - open->done.begin());
        const double limit =
            options.cluster.timeouts.stage + coordinator::kSecondsPerPrefillToken * static_cast<double>(open->rows);
        const coordinator::Clock::time_point since = std::max(s == 0 ? open->submitted : *open->done[s - 1], last_done[s]);
        const double silent = coordinator::Seconds(coordinator::Clock::now() - since).count();
        if (silent < limit) break;  // later steps wait for this one
        late = failure_at(
            *peers[s], ErrorKind::stage_timeout,
            fmt::format("wanted step {} ({} rows) done within {:.1f} s, found no answer", open->number, open->rows, limit),
            open->number);
        break;
      }
      for (const auto& [number, call] : calls) {
        if (call->missing > 0 && coordinator::Clock::now() > call->deadline && !late) {
          late =
              Failure{ErrorKind::stage_timeout,
                      fmt::format("[pipeline] wanted answers to decision {} in time, found {} missing", number, call->missing)};
        }
      }
      if (!late) continue;
      lock.unlock();
      go_down(*late, nullptr);
      lock.lock();
    }
  }

  // ---- decisions
  // --------------------------------------------------------------------------------------------------------------

  void require_ready() const {  // under the mutex
    if (state != State::ready) down_reason.raise();
  }

  // Takes a number and queues the frame that `make` builds for each stage, in order. Under the mutex.
  template <class Make>
  uint64_t post(Make make) {
    const uint64_t number = next_number++;
    for (const auto& peer : peers) {
      std::function<Frame()> build = make(*peer, number);
      static_cast<void>(
          peer->sender.post([this, raw = peer.get(), link = peer->link, number, of = epoch, build = std::move(build)] {
            const std::optional<Failure> failure = guard([&] {
              Frame frame = build();
              frame.epoch = static_cast<uint32_t>(of);
              frame.destination = static_cast<uint16_t>(raw->stage);
              frame.step = number;
              link->send(frame);
            });
            if (failure) go_down(failure_at(*raw, failure->kind, failure->message, number), link);
          }));
    }
    return number;
  }

  uint64_t post_all(const wire::Decision& decision) {
    return post([&](Peer&, uint64_t number) -> std::function<Frame()> {
      wire::Decision numbered = decision;
      numbered.set_number(number);
      return [numbered] { return message_frame(FrameType::step, numbered); };
    });
  }

  // Waits for all stages.
  std::shared_ptr<Call> wait_for(std::unique_lock<std::mutex>& lock, uint64_t number, double seconds) {
    auto call = std::make_shared<Call>();
    call->missing = peers.size();
    call->deadline = coordinator::after(seconds);
    calls.emplace(number, call);
    changed.notify_all();
    changed.wait(lock, [&] { return call->missing == 0; });
    calls.erase(number);
    if (call->failure) call->failure->raise();
    return call;
  }

  void require_living(SequenceId id) const {  // under the mutex
    if (living.contains(id)) return;
    const auto at = dead.find(id);
    if (at != dead.end()) at->second.raise();
    fail(ErrorKind::bad_input, coordinator::kPipelinePlace, "wanted a sequence that lives, found {}", id);
  }

  RemoteOptions options;
  std::string boot;
  std::optional<ChromeTrace> trace;
  std::optional<CoordinatorSampler> sampler;  // of the thread in next()
  std::vector<std::unique_ptr<Peer>> peers;
  std::optional<Plan> plan;
  std::string fingerprint;
  double began = 0.0;                 // when all stages were connected first
  std::mutex question;                // one at a time
  std::atomic<bool> starting = true;  // the constructor waits for the stages

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  uint64_t epoch = 0;  // written by the thread that connects alone
  StateMemory state_memory;
  ByteCount bytes_per_token;
  ByteCount weight_bytes;
  State state = State::down;
  Failure down_reason{ErrorKind::unreachable, "[pipeline] not connected yet"};
  std::optional<SequenceBook> book;
  std::set<SequenceId> living;
  std::map<SequenceId, Failure> dead;  // until they are released
  uint64_t next_number = 1;
  int64_t next_ticket = 1;
  std::deque<std::shared_ptr<OpenStep>> open_steps;
  std::map<uint64_t, std::shared_ptr<Call>> calls;
  std::thread monitor;
  std::thread keeper;
};

}  // namespace weft
