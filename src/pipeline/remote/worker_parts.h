// What a worker consists of inside: its loaded stage, the session of a coordinator, its links and counters.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/guard.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "pipeline/remote/link_watch.h"
#include "pipeline/remote/messages.h"
#include "pipeline/remote/worker.h"
#include "pipeline/stage_runner.h"

namespace weft {

inline constexpr std::string_view kWorkerPlace = "worker";
inline constexpr double kHelloSeconds = 10.0;  // distributed.md 5.10, handshake

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline Frame control_frame(const wire::Control& message) { return message_frame(FrameType::control, message); }

void add_shards(wire::SurveyReply& reply, const Checkpoint& checkpoint);

// A stage whose weights are here. They outlive the coordinator that asked for them.
struct Worker::Loaded {
  std::shared_ptr<const Checkpoint> checkpoint;
  LayerRange layers;
  std::string key;  // what another load must equal to use them again
  std::unique_ptr<StageRunner> runner;
  DType activation = DType::f32;
};

// What status() tells. Under its own mutex.
struct Worker::Counters {
  std::mutex mutex;
  std::string state = "waiting";
  std::string layers;
  std::vector<std::string> shards;
  int64_t bytes_read = 0;
  MemoryUse memory;
  int64_t sequences = 0;
  int64_t steps = 0;
  int64_t failures = 0;
  std::string last_failure;
  double compute = 0.0;  // seconds
  double wait = 0.0;
  double send = 0.0;
  double connected = 0.0;  // when
  int64_t bytes_sent = 0;  // of links that are closed
  int64_t bytes_received = 0;
};

// A link that stop() reaches, and whose bytes status() counts unless it is an observer's.
class Worker::Listed {
 public:
  Listed(Worker& worker, std::shared_ptr<Link> link) : worker_(worker), link_(std::move(link)) {
    const std::lock_guard lock(worker_.mutex_);
    if (worker_.stopped_) fail(ErrorKind::stage_lost, kWorkerPlace, "{}", worker_.stop_reason_);
    worker_.links_.emplace(link_, true);
  }
  ~Listed() {
    const LinkCounters counters = link_->counters();
    bool counted = false;
    {
      const std::lock_guard lock(worker_.mutex_);
      counted = worker_.links_.extract(link_).mapped();
    }
    if (!counted) return;
    const std::lock_guard lock(worker_.counters_->mutex);
    worker_.counters_->bytes_sent += counters.bytes_sent;
    worker_.counters_->bytes_received += counters.bytes_received;
  }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;

  void count_no_more() {
    const std::lock_guard lock(worker_.mutex_);
    worker_.links_.at(link_) = false;
  }

 private:
  Worker& worker_;
  std::shared_ptr<Link> link_;
};

// What belongs to one coordinator.
struct Worker::Session {
  struct Arrival {
    Handover handover;
    int64_t origin = 0;  // stage where a failure arose
  };

  Session(std::shared_ptr<Link> to, const wire::Hello& hello)
      : coordinator(std::move(to)), node(hello.node()), boot(hello.boot()) {}
  ~Session() {
    close("the session ended");
    if (reader.joinable()) reader.join();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void close(const std::string& why) {
    std::shared_ptr<Link> up;
    std::shared_ptr<Link> down;
    {
      const std::lock_guard lock(mutex);
      if (!closed) reason = why;
      closed = true;
      up = upstream;
      down = downstream;
    }
    arrived.notify_all();
    if (up) up->cancel(why);
    if (down) down->cancel(why);
  }

  // The boundary before this stage of a decision; what a lost session leaves is a failure.
  Arrival take(uint64_t number) {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return closed || inbox.contains(number); });
    const auto at = inbox.find(number);
    if (at == inbox.end()) return {{std::nullopt, Failure{ErrorKind::stage_lost, fmt::format("[worker] {}", reason)}}, stage};
    Arrival arrival = std::move(at->second);
    inbox.erase(inbox.begin(), std::next(at));
    return arrival;
  }
  void put(uint64_t number, Arrival arrival) {
    {
      const std::lock_guard lock(mutex);
      inbox.insert_or_assign(number, std::move(arrival));
    }
    arrived.notify_all();
  }
  bool is_closed() {
    const std::lock_guard lock(mutex);
    return closed;
  }
  std::string why_closed() {
    const std::lock_guard lock(mutex);
    return reason;
  }
  bool upstream_came() {
    const std::lock_guard lock(mutex);
    return had_upstream;
  }
  // What the trace needs of the time since the answer before.
  void take_spans(wire::Spans& spans) {
    spans.set_answered(answered);
    const std::lock_guard lock(mutex);
    for (wire::SentSpan& span : sent) *spans.add_sent() = std::move(span);
    sent.clear();
  }
  // The stage before may send another boundary.
  void grant() {
    std::shared_ptr<Link> up;
    {
      const std::lock_guard lock(mutex);
      up = upstream;
    }
    if (up) static_cast<void>(guard([&] { up->grant(1); }));
  }
  // To the coordinator; a link that is lost is its reader's business.
  void send(const Frame& frame) {
    static_cast<void>(guard([&] { coordinator->send(frame); }));
  }
  void send(const wire::Control& message) { send(control_frame(message)); }

  std::shared_ptr<Link> coordinator;
  std::string node;
  std::string boot;
  uint64_t next_number = 1;  // the coordinator's reader only
  // Set by load(), before any decision:
  uint64_t epoch = 0;
  wire::Plan plan;
  std::string plan_hash;
  int64_t stage = 0;
  std::shared_ptr<const ModelConfig> config;
  DType activation = DType::f32;
  Compression compression = Compression::none;  // of boundaries that go out
  double answered = 0.0;  // when the answer before was on its way, or the stage was connected; the compute thread only

  std::mutex mutex;
  std::condition_variable arrived;
  bool closed = false;                // guarded by mutex
  std::string reason;                 // guarded by mutex
  bool ready_for_upstream = false;    // guarded by mutex
  bool had_upstream = false;          // guarded by mutex
  std::map<uint64_t, Arrival> inbox;  // guarded by mutex
  std::vector<wire::SentSpan> sent;   // guarded by mutex: not told yet
  std::shared_ptr<Link> upstream;     // guarded by mutex
  std::shared_ptr<Link> downstream;   // set before the first decision; guarded by mutex until then
  std::unique_ptr<Listed> listed;     // of downstream
  std::unique_ptr<LinkWatch> watch;   // likewise
  std::thread reader;                 // of downstream: credits and signs of life
  TaskThread sender;                  // to downstream; last: what it still sends uses the members above
};

}  // namespace weft
