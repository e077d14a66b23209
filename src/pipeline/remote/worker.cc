#include "pipeline/remote/worker.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/system_memory.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/model_config.h"
#include "model/stage_options.h"
#include "model/trunk.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/link_watch.h"
#include "pipeline/remote/messages.h"
#include "pipeline/stage_runner.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "worker";
constexpr double kHelloSeconds = 10.0;  // distributed.md 5.10, handshake
constexpr uint64_t kMostEchoBytes = uint64_t{256} << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string layers_text(LayerRange layers) { return fmt::format("{}-{}", layers.begin, layers.end.value - 1); }

Frame control_frame(const wire::Control& message) { return message_frame(FrameType::control, message); }

}  // namespace

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

// A link that stop() reaches and status() counts.
class Worker::Listed {
 public:
  Listed(Worker& worker, std::shared_ptr<Link> link) : worker_(worker), link_(std::move(link)) {
    const std::lock_guard lock(worker_.mutex_);
    if (worker_.stopped_) fail(ErrorKind::stage_lost, kPlace, "{}", worker_.stop_reason_);
    worker_.links_.insert(link_);
  }
  ~Listed() {
    const LinkCounters counters = link_->counters();
    {
      const std::lock_guard lock(worker_.counters_->mutex);
      worker_.counters_->bytes_sent += counters.bytes_sent;
      worker_.counters_->bytes_received += counters.bytes_received;
    }
    const std::lock_guard lock(worker_.mutex_);
    worker_.links_.erase(link_);
  }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;

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

  Session(std::shared_ptr<Link> to, const wire::Hello& hello) : coordinator(std::move(to)), node(hello.node()), boot(hello.boot()) {}
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

  std::mutex mutex;
  std::condition_variable arrived;
  bool closed = false;               // guarded by mutex
  std::string reason;                // guarded by mutex
  bool ready_for_upstream = false;   // guarded by mutex
  std::map<uint64_t, Arrival> inbox;  // guarded by mutex
  std::shared_ptr<Link> upstream;     // guarded by mutex
  std::shared_ptr<Link> downstream;   // set before the first decision; guarded by mutex until then
  std::unique_ptr<Listed> listed;    // of downstream
  std::unique_ptr<LinkWatch> watch;  // likewise
  std::thread reader;                // of downstream: credits and signs of life
  TaskThread sender;                 // to downstream; last: what it still sends uses the members above
};

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)),
      config_text_(read_text_file(options_.model_dir / "config.json", ErrorKind::bad_checkpoint)),
      config_sha256_(sha256_text(config_text_)),
      family_(load_model_config(options_.model_dir)->model_type),
      boot_(random_boot_id()),
      started_(std::chrono::steady_clock::now()),
      counters_(std::make_unique<Counters>()) {
  if (options_.memory == 0) options_.memory = available_memory();
}

Worker::~Worker() { stop("the worker ended"); }

void Worker::log(const std::string& line) const {
  if (options_.log) static_cast<void>(guard([&] { options_.log(line); }));
}

void Worker::stop(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  stop_reason_ = reason;
  for (const std::shared_ptr<Link>& link : links_) link->cancel(reason);
  if (session_) session_->close(reason);
}

wire::Hello Worker::self() const {
  wire::Hello hello = local_hello(options_.build);
  hello.set_role(wire::Hello::STAGE);
  hello.set_cluster(options_.cluster);
  hello.set_node(options_.node);
  hello.set_boot(boot_);
  hello.set_family(family_);
  hello.set_config_sha256(config_sha256_);
  hello.set_max_frame(static_cast<uint64_t>(options_.link.limits.frame));
  hello.set_max_chunk(static_cast<uint64_t>(options_.link.limits.chunk));
  return hello;
}

wire::HelloReply Worker::reply_to(const wire::Hello& hello) const {
  wire::HelloReply reply;
  wire::Hello mine = self();
  {
    const std::lock_guard lock(mutex_);
    mine.set_epoch(last_epoch_);
  }
  *reply.mutable_self() = mine;
  add_differences(reply, mine, hello);
  if (hello.role() == wire::Hello::COORDINATOR && hello.node() != options_.coordinator) {
    add_difference(reply, "coordinator", options_.coordinator, hello.node());
  }
  reply.set_memory(static_cast<uint64_t>(options_.memory));
  reply.set_device(options_.backend == ops::Backend::cuda ? "cuda" : "cpu");
  const std::lock_guard lock(counters_->mutex);
  reply.set_loaded_layers(counters_->layers);
  return reply;
}

void Worker::serve(std::unique_ptr<MessageStream> stream, std::span<const std::string> names) {
  const auto shared = std::make_shared<Link>(std::move(stream), options_.link);
  Link& link = *shared;
  const Listed listed(*this, shared);

  wire::Control first;
  {
    const LinkDeadline deadline(link, kHelloSeconds, fmt::format("no handshake within {:.0f} s", kHelloSeconds));
    const std::optional<Frame> frame = link.receive();
    if (!frame) return;
    if (frame->type == FrameType::control) first = message_of<wire::Control>(*frame);
  }
  if (!first.has_hello()) fail(ErrorKind::bad_input, kPlace, "{}: wanted a handshake, found another message", link.peer());
  const wire::Hello& hello = first.hello();
  if (!names.empty() && std::ranges::find(names, hello.node()) == names.end()) {
    fail(ErrorKind::security, kPlace, "{}: wanted a certificate that names node '{}', found one of {}", link.peer(), hello.node(),
         fmt::join(names, ", "));
  }
  const LinkWatch watch(link, options_.timeouts.heartbeat_interval,
                        2.0 * static_cast<double>(options_.timeouts.heartbeat_misses) * options_.timeouts.heartbeat_interval);
  switch (hello.role()) {
    case wire::Hello::COORDINATOR: return serve_coordinator(shared, hello);
    case wire::Hello::STAGE: return serve_upstream(shared, hello);
    case wire::Hello::OBSERVER: return serve_observer(link, hello);
    default: fail(ErrorKind::bad_input, kPlace, "{}: wanted role 0, 1 or 2, found {}", link.peer(), static_cast<int>(hello.role()));
  }
}

namespace {

// Answers a handshake. Differences end the connection, after the other end was told all of them.
void greet(Link& link, const wire::HelloReply& reply) {
  wire::Control message;
  *message.mutable_hello_reply() = reply;
  link.send(control_frame(message));
  if (reply.differences_size() == 0) return;
  link.finish();
  // The other end has read them when it ends its side.
  const LinkDeadline deadline(link, kHelloSeconds, "handshake refused");
  static_cast<void>(guard([&] {
    while (link.receive()) {
    }
  }));
  fail(ErrorKind::handshake, kPlace, "{}: refused: {}", link.peer(), differences_text(reply));
}

}  // namespace

void Worker::serve_coordinator(const std::shared_ptr<Link>& shared, const wire::Hello& hello) {
  Link& link = *shared;
  wire::HelloReply reply = reply_to(hello);
  auto session = std::make_shared<Session>(shared, hello);
  if (reply.differences_size() == 0) {
    const std::lock_guard lock(mutex_);
    if (session_ && !session_->is_closed()) {
      if (session_->boot == hello.boot()) {
        session_->close("the coordinator came again");
        session_->coordinator->cancel("the coordinator came again");
      } else {
        reply.set_busy(session_->node);
        add_difference(reply, "coordinator in charge", "none", fmt::format("{} ({})", session_->node, session_->coordinator->peer()));
      }
    }
    if (reply.differences_size() == 0) session_ = session;
  }
  greet(link, reply);
  log(fmt::format("coordinator {} ({}) is served", hello.node(), link.peer()));
  std::string reason = "the coordinator left";
  const std::optional<Failure> failure = guard([&] {
    while (std::optional<Frame> frame = link.receive()) {
      if (frame->type == FrameType::control) {
        control(session, message_of<wire::Control>(*frame));
      } else if (frame->type == FrameType::step) {
        decide(session, *frame);
      } else {
        fail(ErrorKind::bad_input, kPlace, "{}: wanted a decision, found a frame of type {}", link.peer(),
             static_cast<int>(frame->type));
      }
    }
  });
  if (failure) reason = failure->message;
  end_session(session, reason);
  log(fmt::format("coordinator {} is gone: {}", hello.node(), reason));
}

void Worker::end_session(const std::shared_ptr<Session>& session, const std::string& reason) {
  session->close(reason);
  // The session's link ends with the caller: nothing on the compute thread may use it any more. Sequences go with it.
  compute_
      .post([this, session] {
        if (loaded_ && loaded_->runner) loaded_->runner->forget_all();
        session->sender.post([] {}).wait();  // with a cancelled link all of it ends at once
        session->listed.reset();
        const std::lock_guard lock(counters_->mutex);
        counters_->sequences = 0;
        counters_->connected = 0.0;
        counters_->state = loaded_ ? "loaded" : "waiting";
        if (loaded_ && loaded_->runner) counters_->memory = loaded_->runner->memory();
      })
      .wait();
  const std::lock_guard lock(mutex_);
  if (session_ == session) session_.reset();
}

void Worker::serve_upstream(const std::shared_ptr<Link>& shared, const wire::Hello& hello) {
  Link& link = *shared;
  std::shared_ptr<Session> session;
  wire::HelloReply reply = reply_to(hello);
  {
    const std::lock_guard lock(mutex_);
    session = session_;
  }
  if (!session || session->is_closed()) {
    add_difference(reply, "coordinator in charge", "one", "none");
  } else {
    const std::lock_guard lock(session->mutex);
    if (!session->ready_for_upstream) {
      add_difference(reply, "stage", "loaded", "not loaded");
    } else {
      if (session->epoch != hello.epoch())
        add_difference(reply, "plan epoch", fmt::format("{}", session->epoch), fmt::format("{}", hello.epoch()));
      if (session->plan_hash != hello.plan_sha256()) add_difference(reply, "plan", session->plan_hash, hello.plan_sha256());
      if (session->stage == 0) add_difference(reply, "stage before", "none", hello.node());
      if (session->upstream) add_difference(reply, "stage before", "one connection", "a second one");
    }
    if (reply.differences_size() == 0) session->upstream = shared;
  }
  greet(link, reply);
  std::string reason = "the stage before left";
  const std::optional<Failure> failure = guard([&] {
    const LayerIndex layer(session->plan.stages(static_cast<int>(session->stage)).begin());
    const BoundaryForm form = boundary_form(*session->config, layer, session->activation);
    while (std::optional<Frame> frame = link.receive()) {
      if (frame->epoch != static_cast<uint32_t>(session->epoch)) continue;  // of a session that is gone
      Session::Arrival arrival;
      arrival.origin = session->stage;
      if (frame->type == FrameType::abort) {
        const auto told = message_of<wire::Failure>(*frame);
        arrival.origin = told.stage();
        arrival.handover.failure = from_wire(told);
      } else if (frame->type == FrameType::payload) {
        arrival.handover.failure = guard([&] {
          if (frame->tensors.size() != 1) {
            fail(ErrorKind::bad_input, "boundary", "wanted one tensor, found {}", frame->tensors.size());
          }
          const FrameTensor& tensor = frame->tensors.front();
          if (tensor.kind != TensorKind::hidden && tensor.kind != TensorKind::sealed) {
            fail(ErrorKind::bad_input, "boundary", "before layer {}: wanted a boundary, found tensor kind {}", layer,
                 static_cast<int>(tensor.kind));
          }
          int64_t rows = 0;
          for (const SequenceRow& row : frame->rows) rows += row.count;
          arrival.handover.boundary = unpack_boundary(tensor.view, tensor.kind == TensorKind::sealed, form, rows);
        });
      } else {
        fail(ErrorKind::bad_input, kPlace, "{}: wanted a boundary, found a frame of type {}", link.peer(),
             static_cast<int>(frame->type));
      }
      session->put(frame->step, std::move(arrival));
    }
  });
  if (failure) reason = failure->message;
  bool lost = false;
  {
    const std::lock_guard lock(session->mutex);
    session->upstream.reset();
    lost = !session->closed;
  }
  if (!lost) return;
  const Failure told{ErrorKind::stage_lost, fmt::format("link from {} ({}): {}", hello.node(), link.peer(), reason)};
  log(told.message);
  session->send(message_frame(FrameType::abort, to_wire(told, std::max<int64_t>(session->stage - 1, 0))));
}

void Worker::serve_observer(Link& link, const wire::Hello& hello) {
  const wire::HelloReply reply = reply_to(hello);
  greet(link, reply);
  while (std::optional<Frame> frame = link.receive()) {
    const auto message = message_of<wire::Control>(*frame);
    wire::Control answer;
    if (message.has_status()) {
      *answer.mutable_status_reply() = status();
    } else if (message.has_echo_bytes()) {
      // The bytes stand beside the message; as many are asked back.
      const auto bytes = static_cast<uint64_t>(std::max<int64_t>(0, message.echo_bytes()));
      if (bytes > kMostEchoBytes) fail(ErrorKind::bad_input, kPlace, "echo: wanted at most {} bytes, found {}", kMostEchoBytes, bytes);
      answer.set_echo_bytes(static_cast<int64_t>(bytes));
      Frame echo = control_frame(answer);
      echo.tensors.push_back(FrameTensor::of(
          TensorKind::cache, std::make_shared<const Tensor>(Tensor::zeros(DType::u8, {static_cast<int64_t>(bytes)}))));
      link.send(echo);
      continue;
    } else if (message.has_measure_link()) {
      wire::MeasuredLink& measured = *answer.mutable_measured_link();
      const wire::MeasureLink& wanted = message.measure_link();
      const std::optional<Failure> failure = guard([&] {
        const LinkMeasure result = measure_link(options_.connect({wanted.address(), wanted.node()}, options_.timeouts.connect),
                                                options_.link, observer_hello(self(), wanted.node()), wanted.bytes(), wanted.repeats());
        measured.set_round_trip(result.round_trip);
        measured.set_bandwidth(result.bandwidth);
      });
      if (failure) *measured.mutable_failure() = to_wire(*failure, options_.stage);
    } else {
      fail(ErrorKind::bad_input, kPlace, "{}: wanted a question, found another message", link.peer());
    }
    link.send(control_frame(answer));
  }
}

void Worker::control(const std::shared_ptr<Session>& session, const wire::Control& message) {
  if (message.has_survey()) {
    static_cast<void>(compute_.post([this, session, message] { survey(*session, message.survey().plan(), message.survey().stage()); }));
  } else if (message.has_load()) {
    static_cast<void>(compute_.post([this, session, message] { load(*session, message); }));
  } else if (message.has_connect()) {
    static_cast<void>(compute_.post([this, session] { connect(session); }));
  } else if (message.has_status()) {
    wire::Control answer;
    *answer.mutable_status_reply() = status();
    session->send(answer);
  } else {
    fail(ErrorKind::bad_input, kPlace, "wanted an order of the coordinator, found another message");
  }
}

void Worker::survey(Session& session, const wire::Plan& plan, int64_t stage) {
  if (session.is_closed()) return;
  wire::Control answer;
  wire::SurveyReply& reply = *answer.mutable_survey_reply();
  const std::optional<Failure> failure = guard([&] {
    const LayerRange layers = stage_layers(plan, stage);
    if (!loaded_ || loaded_->layers != layers) {
      loaded_.reset();  // before the next one: two may not fit
      auto made = std::make_unique<Loaded>();
      made->layers = layers;
      made->checkpoint = std::make_shared<const Checkpoint>(options_.model_dir, CheckpointOptions{.layers = layers});
      loaded_ = std::move(made);
    }
    for (const ShardDigest& digest : shard_digests(*loaded_->checkpoint)) {
      wire::ShardDigest& to = *reply.add_shards();
      to.set_file(digest.file);
      to.set_sha256(digest.sha256);
    }
  });
  if (failure) *reply.mutable_failure() = to_wire(*failure, stage);
  session.send(answer);
}

void Worker::load(Session& session, const wire::Control& message) {
  if (session.is_closed()) return;
  const wire::Load& wanted = message.load();
  wire::Control answer;
  wire::Loaded& reply = *answer.mutable_loaded();
  {
    const std::lock_guard lock(counters_->mutex);
    counters_->state = "loading";
  }
  const std::optional<Failure> failure = guard([&] {
    const LayerRange layers = stage_layers(wanted.plan(), wanted.stage());
    if (!loaded_ || loaded_->layers != layers) fail(ErrorKind::bad_input, kPlace, "wanted a survey of the stage before its load");
    const wire::PlannedStage& planned = wanted.plan().stages(static_cast<int>(wanted.stage()));
    StageOptions options;
    options.layers = layers;
    options.profile = wanted.plan().profile() == 1 ? ops::Profile::bf16 : ops::Profile::exact;
    options.fingerprint = wanted.fingerprint();
    options.step_rows = wanted.plan().prefill_chunk();
    options.state_memory = ByteCount(planned.state_bytes());
    options.dummy_weights = options_.dummy_weights;
    if (planned.expert_bytes() >= 0) options.expert_budget = ByteCount(planned.expert_bytes());
    const std::string key = fmt::format("{} {} {} {} {} {}", layers_text(layers), wanted.plan().profile(), wanted.fingerprint(),
                                        options.step_rows, planned.state_bytes(), planned.expert_bytes());
    reply.set_reused(loaded_->runner != nullptr && loaded_->key == key);
    if (!reply.reused()) {
      loaded_->runner.reset();
      wire::Control progress;
      const int64_t total = trunk_bytes(*loaded_->checkpoint, layers).value;
      progress.mutable_load_progress()->set_total(total);
      session.send(progress);
      if (options_.backend == ops::Backend::cuda) options.device = open_cuda_device();
      // Host memory is taken as it is used; the coordinator's budget bounds it.
      if (options.device->is_host()) options.state.slots = 1 << 20;
      if (!options_.dummy_weights) read_trunk(*loaded_->checkpoint, layers);
      progress.mutable_load_progress()->set_done(total);
      session.send(progress);
      StageRunnerOptions runner;
      runner.threads = options_.threads > 0 ? options_.threads : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024);
      runner.backend = options_.backend;
      runner.profile = options.profile;
      std::unique_ptr<Stage> made = make_stage(loaded_->checkpoint, options);
      if (options_.wrap_stage) made = options_.wrap_stage(std::move(made));
      loaded_->runner = std::make_unique<StageRunner>(std::move(made), runner);
      loaded_->key = key;
      loaded_->activation = activation_dtype(options.profile);
    }
    loaded_->runner->forget_all();
    Stage& stage = loaded_->runner->stage();
    const StatePool& pool = stage.states();
    reply.set_slots(pool.limits().slots);
    reply.set_pages(pool.limits().pages);
    reply.set_slot_bytes(pool.layout().slot_bytes().value);
    reply.set_page_bytes(pool.layout().page_floats() == 0 ? 0 : pool.layout().page_bytes().value);
    reply.set_bytes_per_token(stage.bytes_per_token().value);
    reply.set_vocab_size(stage.vocab_size());
    reply.set_hidden_size(stage.hidden_size());
    reply.set_weight_bytes(loaded_->checkpoint->weight_bytes(layers).value);
    {
      const std::lock_guard lock(session.mutex);
      session.epoch = wanted.epoch();
      session.plan = wanted.plan();
      session.plan_hash = plan_sha256(wanted.plan());
      session.stage = wanted.stage();
      session.config = loaded_->checkpoint->shared_config();
      session.activation = loaded_->activation;
      session.ready_for_upstream = true;
    }
    {
      const std::lock_guard lock(mutex_);
      last_epoch_ = std::max(last_epoch_, wanted.epoch());
    }
    const Json audit = loaded_->checkpoint->load_audit();
    if (!options_.load_audit.empty()) write_file_atomic(options_.load_audit, audit.dump(1) + "\n");
    const std::lock_guard lock(counters_->mutex);
    counters_->layers = layers_text(layers);
    counters_->memory = loaded_->runner->memory();
    counters_->state = "loaded";
    counters_->shards.clear();
    counters_->bytes_read = 0;
    for (const Json& file : audit.at("files")) {
      counters_->shards.push_back(file.at("file").get<std::string>());
      counters_->bytes_read += file.at("read").get<int64_t>();
    }
  });
  if (failure) {
    *reply.mutable_failure() = to_wire(*failure, wanted.stage());
    const std::lock_guard lock(counters_->mutex);
    counters_->state = "failed";
    counters_->last_failure = failure->message;
  }
  log(failure ? fmt::format("loading failed: {}", failure->message)
              : fmt::format("layers {} {}", layers_text(loaded_->layers), reply.reused() ? "are here still" : "are loaded"));
  session.send(answer);
}

void Worker::connect(const std::shared_ptr<Session>& session) {
  if (session->is_closed()) return;
  wire::Control answer;
  wire::Connected& reply = *answer.mutable_connected();
  const std::optional<Failure> failure = guard([&] {
    if (!loaded_ || !loaded_->runner || session->plan.stages_size() == 0) {
      fail(ErrorKind::bad_input, kPlace, "wanted a loaded stage before it connects, found none");
    }
    if (session->stage + 1 < session->plan.stages_size()) {
      const wire::PlannedStage& next = session->plan.stages(static_cast<int>(session->stage + 1));
      auto link = std::make_shared<Link>(options_.connect({next.address(), next.node()}, options_.timeouts.connect), options_.link);
      wire::Hello hello = self();
      hello.set_to_node(next.node());
      hello.set_epoch(session->epoch);
      hello.set_plan_sha256(session->plan_hash);
      exchange_hello(*link, hello, kHelloSeconds);
      session->listed = std::make_unique<Listed>(*this, link);
      {
        const std::lock_guard lock(session->mutex);
        session->downstream = std::move(link);
        if (session->closed) fail(ErrorKind::stage_lost, kPlace, "{}", session->reason);
      }
      session->watch = std::make_unique<LinkWatch>(
          *session->downstream, options_.timeouts.heartbeat_interval,
          2.0 * static_cast<double>(options_.timeouts.heartbeat_misses) * options_.timeouts.heartbeat_interval);
      Session* raw = session.get();
      session->reader = std::thread([this, raw] {
        const std::optional<Failure> lost = guard([&] {
          while (raw->downstream->receive()) {
          }
          fail(ErrorKind::stage_lost, kPlace, "the next stage left");
        });
        if (raw->is_closed()) return;
        const wire::PlannedStage& to = raw->plan.stages(static_cast<int>(raw->stage + 1));
        const Failure told{ErrorKind::stage_lost, fmt::format("link to {} ({}): {}", to.node(), to.address(), lost->message)};
        log(told.message);
        raw->send(message_frame(FrameType::abort, to_wire(told, raw->stage + 1)));
      });
    }
    const std::lock_guard lock(counters_->mutex);
    counters_->state = "ready";
    counters_->connected = now();
    counters_->compute = counters_->wait = counters_->send = 0.0;
    counters_->steps = 0;
  });
  if (failure) *reply.mutable_failure() = to_wire(*failure, session->stage);
  session->send(answer);
}

void Worker::decide(const std::shared_ptr<Session>& session, const Frame& frame) {
  auto kept = std::make_shared<const Frame>(frame);
  const double queued = now();
  // Numbers are looked at here, so that a gap is seen at once.
  if (frame.epoch != static_cast<uint32_t>(session->epoch)) {
    fail(ErrorKind::bad_input, kPlace, "E_EPOCH: wanted epoch {}, found {}", session->epoch, frame.epoch);
  }
  if (frame.step != session->next_number) {
    fail(ErrorKind::bad_input, kPlace, "{}: wanted decision {}, found {}", frame.step < session->next_number ? "E_STEP_DUP" : "E_STEP_GAP",
         session->next_number, frame.step);
  }
  ++session->next_number;
  static_cast<void>(compute_.post([this, session, kept, queued] { run_step(session, kept->step, kept, queued); }));
}

void Worker::run_step(const std::shared_ptr<Session>& session, uint64_t number, const std::shared_ptr<const Frame>& frame,
                      double queued) {
  if (session->is_closed()) return;
  StageRunner& runner = *loaded_->runner;
  const int64_t stage = session->stage;
  const bool last = stage + 1 == session->plan.stages_size();
  wire::Done done;
  done.set_number(number);
  Frame answer;
  std::vector<RowsResult> results;
  std::shared_ptr<const SequenceState::Tensors> state;
  int64_t origin = stage;
  bool is_step = false;
  wire::Decision decision;
  std::optional<Failure> failure = guard([&] {
    parse_message(*frame, decision);
    switch (decision.what_case()) {
      case wire::Decision::kCreate: runner.create(SequenceId(decision.create())); break;
      case wire::Decision::kFork: runner.fork(SequenceId(decision.fork().sequence()), SequenceId(decision.fork().as())); break;
      case wire::Decision::kRelease: runner.forget(SequenceId(decision.release())); break;
      case wire::Decision::kSnapshot:
        state = std::make_shared<const SequenceState::Tensors>(runner.state(SequenceId(decision.snapshot())).export_tensors());
        break;
      case wire::Decision::kRestore:
        runner.restore(SequenceId(decision.restore().sequence()), TokenCount(decision.restore().consumed()),
                       state_of(*frame, decision.restore().names()));
        break;
      case wire::Decision::kProbe: *done.mutable_status() = status(); break;
      case wire::Decision::kStep: is_step = true; break;
      case wire::Decision::WHAT_NOT_SET:
        fail(ErrorKind::bad_input, kPlace, "decision {}: wanted something to do, found nothing", number);
    }
  });
  if (is_step) {
    Session::Arrival arrival;
    const double waited = now();
    if (stage > 0) {
      arrival = session->take(number);
      session->grant();
      origin = arrival.handover.failure ? arrival.origin : stage;
    }
    const double began = now();
    StageStep step;
    StageRunner::Outcome outcome;
    failure = guard([&] {
      step = from_wire(decision.step());
      // Two stages must agree where a sequence stands (K3 spec 5): a step that one of them missed shows here.
      for (int i = 0; i < decision.step().rows_size() && !arrival.handover.failure; ++i) {
        const wire::Rows& rows = decision.step().rows(i);
        const TokenCount consumed = runner.state(SequenceId(rows.sequence())).consumed();
        if (consumed.value != rows.start()) {
          fail(ErrorKind::bad_input, kPlace, "E_CACHE_GEN: sequence {}: wanted {} tokens consumed, found {}", rows.sequence(),
               rows.start(), consumed);
        }
      }
    });
    if (failure && !arrival.handover.failure) arrival.handover = {std::nullopt, failure};
    outcome = runner.run(step, std::move(arrival.handover));
    failure = outcome.handover.failure;
    results = std::move(outcome.results);
    const double ended = now();
    if (!last) {
      // The last stage's answer is what tokens wait for; a middle one's says how far the step has come.
      Session* raw = session.get();
      auto handover = std::make_shared<Handover>(std::move(outcome.handover));
      static_cast<void>(session->sender.post([this, raw, number, handover, origin, decision = std::make_shared<wire::Decision>(decision)] {
        const double start = now();
        const std::optional<Failure> lost = guard([&] {
          Frame out;
          if (handover->failure) {
            out = message_frame(FrameType::abort, to_wire(*handover->failure, origin));
          } else {
            out.type = FrameType::payload;
            auto packed = std::make_shared<const Tensor>(pack_boundary(*handover->boundary, raw->activation));
            out.tensors.push_back(
                FrameTensor::of(handover->boundary->sealed ? TensorKind::sealed : TensorKind::hidden, std::move(packed)));
            out.rows = sequence_rows(decision->step());
          }
          out.epoch = static_cast<uint32_t>(raw->epoch);
          out.source = static_cast<uint16_t>(raw->stage);
          out.destination = static_cast<uint16_t>(raw->stage + 1);
          out.step = number;
          raw->downstream->send(out);
        });
        const std::lock_guard lock(counters_->mutex);
        counters_->send += now() - start;
        if (!lost || raw->is_closed()) return;
        const wire::PlannedStage& to = raw->plan.stages(static_cast<int>(raw->stage + 1));
        const Failure told{lost->kind, fmt::format("link to {} ({}): {}", to.node(), to.address(), lost->message)};
        raw->send(message_frame(FrameType::abort, to_wire(told, raw->stage + 1)));
      }));
    }
    wire::Spans& spans = *done.mutable_spans();
    spans.set_queued(queued);
    spans.set_waited(waited);
    spans.set_began(began);
    spans.set_ended(ended);
    for (const wire::Rows& rows : decision.step().rows()) spans.set_rows(spans.rows() + rows.ids_size());
    const std::lock_guard lock(counters_->mutex);
    ++counters_->steps;
    counters_->wait += began - waited;
    counters_->compute += ended - began;
    counters_->memory = runner.memory();
  }
  if (failure) {
    *done.mutable_failure() = to_wire(*failure, origin);
    results.clear();
  } else if (state) {
    std::map<std::string, TensorView> views;
    for (const auto& [name, tensor] : *state) views.emplace(name, tensor.view());
    add_state(answer, *done.mutable_names(), views, state);
  }
  if (is_step && last && !failure) add_results(answer, done, std::move(results));
  {
    const std::lock_guard lock(counters_->mutex);
    counters_->sequences = runner.sequences();
    if (failure) {
      ++counters_->failures;
      counters_->last_failure = failure->message;
    }
  }
  Frame told = message_frame(FrameType::tokens, done);
  told.epoch = static_cast<uint32_t>(session->epoch);
  told.source = static_cast<uint16_t>(stage);
  told.step = number;
  for (FrameTensor& tensor : answer.tensors) told.tensors.push_back(std::move(tensor));
  const std::optional<Failure> unsent = guard([&] { session->coordinator->send(told); });
  if (unsent && !session->is_closed()) {
    // Too large a frame, or a lost link, which the reader sees too.
    wire::Done instead;
    instead.set_number(number);
    *instead.mutable_failure() = to_wire(*unsent, stage);
    Frame short_answer = message_frame(FrameType::tokens, instead);
    short_answer.epoch = told.epoch;
    short_answer.source = told.source;
    short_answer.step = number;
    session->send(short_answer);
  }
}

wire::Status Worker::status() {
  wire::Status made;
  made.set_node(options_.node);
  made.set_stage(static_cast<uint32_t>(options_.stage));
  made.set_boot(boot_);
  made.set_device(options_.backend == ops::Backend::cuda ? "cuda" : "cpu");
  const ProcessMemory process = process_memory();
  made.set_resident_bytes(process.resident);
  made.set_peak_bytes(process.peak);
  int64_t sent = 0;
  int64_t received = 0;
  {
    const std::lock_guard lock(mutex_);
    made.set_epoch(last_epoch_);
    if (session_ && !session_->is_closed()) {
      made.set_coordinator(session_->node);
    }
    for (const std::shared_ptr<Link>& link : links_) {
      const LinkCounters counters = link->counters();
      sent += counters.bytes_sent;
      received += counters.bytes_received;
    }
  }
  const std::lock_guard lock(counters_->mutex);
  made.set_state(counters_->state);
  made.set_layers(counters_->layers);
  made.set_trunk_bytes(counters_->memory.trunk.value);
  made.set_expert_bytes(counters_->memory.experts.value);
  made.set_state_bytes(counters_->memory.state.value);
  made.set_workspace_bytes(counters_->memory.workspace.value);
  made.set_gpu_planned_bytes(counters_->memory.gpu_planned.total().value);
  made.set_gpu_used_bytes(counters_->memory.gpu_used.total().value);
  made.set_sequences(counters_->sequences);
  made.set_steps(counters_->steps);
  made.set_compute_seconds(counters_->compute);
  made.set_wait_seconds(counters_->wait);
  made.set_send_seconds(counters_->send);
  made.set_up_seconds(counters_->connected > 0.0 ? now() - counters_->connected : 0.0);
  made.set_bytes_sent(counters_->bytes_sent + sent);
  made.set_bytes_received(counters_->bytes_received + received);
  made.set_failures(counters_->failures);
  made.set_last_failure(counters_->last_failure);
  for (const std::string& shard : counters_->shards) made.add_shards(shard);
  made.set_bytes_read(counters_->bytes_read);
  return made;
}

}  // namespace weft
