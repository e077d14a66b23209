#include "pipeline/remote/worker.h"

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/system_memory.h"
#include "ops/cpu/dense.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/worker_parts.h"

namespace weft {
namespace {

constexpr uint64_t kMostEchoBytes = uint64_t{256} << 20;

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
  fail(reply.has_refused() ? ErrorKind::security : ErrorKind::handshake, kWorkerPlace, "{}: refused: {}", link.peer(),
       reply.has_refused() ? reply.refused().message() : differences_text(reply));
}

}  // namespace

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
  // First: what this end breaks is no loss of the neighbours.
  if (session_) session_->close(reason);
  for (const auto& [link, counted] : links_) link->cancel(reason);
}

wire::Hello Worker::self() const {
  wire::Hello hello = local_hello(options_.build);
  hello.set_role(wire::Hello::STAGE);
  hello.set_cluster(options_.cluster);
  hello.set_node(options_.node);
  hello.set_boot(boot_);
  hello.set_family(family_);
  hello.set_config_sha256(config_sha256_);
  hello.set_advertise(options_.advertise);
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
  reply.set_features(options_.features);
  reply.set_operators(options_.backend == ops::Backend::cuda        ? "cuda"
                      : options_.backend == ops::Backend::reference ? "reference"
                                                                    : fmt::format("cpu {}", ops::cpu::dispatch_target()));
  const std::lock_guard lock(counters_->mutex);
  reply.set_loaded_layers(counters_->layers);
  return reply;
}

void Worker::serve(std::unique_ptr<MessageStream> stream, std::span<const std::string> names) {
  const auto shared = std::make_shared<Link>(std::move(stream), options_.link);
  Link& link = *shared;
  Listed listed(*this, shared);

  wire::Control first;
  {
    const LinkDeadline deadline(link, kHelloSeconds, fmt::format("no handshake within {:.0f} s", kHelloSeconds));
    const std::optional<Frame> frame = link.receive();
    if (!frame) return;
    if (frame->type == FrameType::control) first = message_of<wire::Control>(*frame);
  }
  if (!first.has_hello())
    fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted a handshake, found another message", link.peer());
  const wire::Hello& hello = first.hello();
  // By its id: the address from which it calls says little.
  if (!names.empty() && !names_node({names.begin(), names.end()}, {"unix:/", hello.node()})) {
    const Failure refused{ErrorKind::security,
                          fmt::format("[{}] {}: wanted a certificate that names node '{}', found one of {}", kWorkerPlace,
                                      options_.node, hello.node(), fmt::join(names, ", "))};
    wire::HelloReply reply;
    *reply.mutable_self() = self();
    *reply.mutable_refused() = to_wire(refused, options_.stage);
    add_difference(reply, "certificate", hello.node(), fmt::format("{}", fmt::join(names, ", ")));
    greet(link, reply);
  }
  const LinkWatch watch(link, options_.timeouts.heartbeat_interval,
                        2.0 * static_cast<double>(options_.timeouts.heartbeat_misses) * options_.timeouts.heartbeat_interval);
  switch (hello.role()) {
    case wire::Hello::COORDINATOR: return serve_coordinator(shared, hello);
    case wire::Hello::STAGE: return serve_upstream(shared, hello);
    case wire::Hello::OBSERVER: listed.count_no_more(); return serve_observer(link, hello);
    default:
      fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted role 0, 1 or 2, found {}", link.peer(),
           static_cast<int>(hello.role()));
  }
}

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
        add_difference(reply, "coordinator in charge", "none",
                       fmt::format("{} ({})", session_->node, session_->coordinator->peer()));
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
        fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted a decision, found a frame of type {}", link.peer(),
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
        const bool has_weights = loaded_ && loaded_->runner;
        if (has_weights || counters_->state != "failed") counters_->state = has_weights ? "loaded" : "waiting";
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
    if (reply.differences_size() == 0) {
      session->upstream = shared;
      session->had_upstream = true;
    }
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
        fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted a boundary, found a frame of type {}", link.peer(),
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
  const Failure told{ErrorKind::stage_lost,
                     fmt::format("link from {} ({}) to {}: {}", hello.node(), link.peer(), options_.node, reason)};
  log(told.message);
  session->send(message_frame(FrameType::abort, to_wire(told, std::max<int64_t>(session->stage - 1, 0))));
}

void Worker::serve_observer(Link& link, const wire::Hello& hello) {
  greet(link, reply_to(hello));
  TaskThread beside;  // the loop answers signs of life meanwhile
  while (std::optional<Frame> frame = link.receive()) {
    const auto message = message_of<wire::Control>(*frame);
    wire::Control answer;
    if (message.has_status()) {
      *answer.mutable_status_reply() = status();
    } else if (message.has_echo_bytes()) {
      // The bytes stand beside the message; as many are asked back.
      const auto bytes = static_cast<uint64_t>(std::max<int64_t>(0, message.echo_bytes()));
      if (bytes > kMostEchoBytes)
        fail(ErrorKind::bad_input, kWorkerPlace, "echo: wanted at most {} bytes, found {}", kMostEchoBytes, bytes);
      answer.set_echo_bytes(static_cast<int64_t>(bytes));
      Frame echo = control_frame(answer);
      echo.tensors.push_back(FrameTensor::of(
          TensorKind::cache, std::make_shared<const Tensor>(Tensor::zeros(DType::u8, {static_cast<int64_t>(bytes)}))));
      link.send(echo);
      continue;
    } else if (message.has_measure_link()) {
      static_cast<void>(beside.post([this, &link, wanted = message.measure_link()] {
        wire::Control told;
        wire::MeasuredLink& measured = *told.mutable_measured_link();
        const std::optional<Failure> failure = guard([&] {
          const LinkMeasure result =
              measure_link(options_.connect({wanted.address(), wanted.node()}, options_.timeouts.connect), options_.link,
                           observer_hello(self(), wanted.node()), wanted.bytes(), wanted.repeats());
          measured.set_round_trip(result.round_trip);
          measured.set_bandwidth(result.bandwidth);
        });
        if (failure) *measured.mutable_failure() = to_wire(*failure, options_.stage);
        static_cast<void>(guard([&] { link.send(control_frame(told)); }));  // a lost link is the loop's business
      }));
      continue;
    } else if (message.has_survey()) {
      static_cast<void>(beside.post([this, &link, wanted = message.survey()] {
        wire::Control told;
        wire::SurveyReply& reply = *told.mutable_survey_reply();
        const std::optional<Failure> failure = guard([&] {
          const LayerRange layers = stage_layers(wanted.plan(), wanted.stage());
          const Checkpoint checkpoint(options_.model_dir, checkpoint_options(layers));
          checkpoint.require(layers);
          add_shards(reply, checkpoint);
        });
        if (failure) *reply.mutable_failure() = to_wire(*failure, options_.stage);
        static_cast<void>(guard([&] { link.send(control_frame(told)); }));
      }));
      continue;
    } else {
      fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted a question, found another message", link.peer());
    }
    link.send(control_frame(answer));
  }
}

void Worker::control(const std::shared_ptr<Session>& session, const wire::Control& message) {
  if (message.has_survey()) {
    static_cast<void>(
        compute_.post([this, session, message] { survey(*session, message.survey().plan(), message.survey().stage()); }));
  } else if (message.has_load()) {
    static_cast<void>(compute_.post([this, session, message] { load(*session, message); }));
  } else if (message.has_connect()) {
    static_cast<void>(compute_.post([this, session] { connect(session); }));
  } else if (message.has_status()) {
    wire::Control answer;
    *answer.mutable_status_reply() = status();
    session->send(answer);
  } else {
    fail(ErrorKind::bad_input, kWorkerPlace, "wanted an order of the coordinator, found another message");
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
    for (const auto& [link, counted] : links_) {
      if (!counted) continue;
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
  made.set_up_seconds(counters_->connected > 0.0 ? steady_seconds() - counters_->connected : 0.0);
  made.set_bytes_sent(counters_->bytes_sent + sent);
  made.set_bytes_received(counters_->bytes_received + received);
  made.set_failures(counters_->failures);
  made.set_last_failure(counters_->last_failure);
  for (const std::string& shard : counters_->shards) made.add_shards(shard);
  made.set_bytes_read(counters_->bytes_read);
  return made;
}

}  // namespace weft
