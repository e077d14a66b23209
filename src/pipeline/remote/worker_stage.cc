// What a worker does on its compute thread: it loads its stage, connects it to the next, and carries out decisions.
#include <algorithm>
#include <thread>
#include <utility>

#include "base/file.h"
#include "model/fingerprint.h"
#include "model/stage_options.h"
#include "model/trunk.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/worker_parts.h"

namespace weft {
namespace {

constexpr int64_t kMostRows = 1 << 20;
constexpr double kProgressSeconds = 0.5;  // between two reports of loading

std::string layers_text(LayerRange layers) { return fmt::format("{}-{}", layers.begin, layers.end.value - 1); }

int64_t row_count(const wire::Step& step) {
  int64_t count = 0;
  for (const wire::Rows& rows : step.rows()) count += rows.ids_size();
  return count;
}

}  // namespace

CheckpointOptions Worker::checkpoint_options(LayerRange layers) const {
  return {.allow_unknown_tensors = options_.allow_unknown_tensors, .rebuild_index = options_.rebuild_index, .layers = layers};
}

void add_shards(wire::SurveyReply& reply, const Checkpoint& checkpoint) {
  for (const ShardDigest& digest : shard_digests(checkpoint)) {
    wire::ShardDigest& to = *reply.add_shards();
    to.set_file(digest.file);
    to.set_sha256(digest.sha256);
  }
}

void Worker::count_failed_load(const Failure& failure) {
  const std::lock_guard lock(counters_->mutex);
  counters_->state = "failed";
  counters_->last_failure = failure.message;
  ++counters_->failures;
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
      made->checkpoint = std::make_shared<const Checkpoint>(options_.model_dir, checkpoint_options(layers));
      loaded_ = std::move(made);
    }
    add_shards(reply, *loaded_->checkpoint);
  });
  if (failure) {
    *reply.mutable_failure() = to_wire(*failure, stage);
    log(fmt::format("loading failed: {}", failure->message));
    count_failed_load(*failure);
  }
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
    if (!loaded_ || loaded_->layers != layers)
      fail(ErrorKind::bad_input, kWorkerPlace, "wanted a survey of the stage before its load");
    if (wanted.plan().prefill_chunk() < 1 || wanted.plan().prefill_chunk() > kMostRows) {
      fail(ErrorKind::bad_input, kWorkerPlace, "prefill chunk: wanted 1 to {}, found {}", kMostRows,
           wanted.plan().prefill_chunk());
    }
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
      if (!options_.dummy_weights) {
        read_trunk(*loaded_->checkpoint, layers, [&, told = steady_seconds()](int64_t bytes) mutable {
          if (session.is_closed()) fail(ErrorKind::stage_lost, kWorkerPlace, "loading was given up: {}", session.why_closed());
          if (steady_seconds() - told < kProgressSeconds) return;
          told = steady_seconds();
          progress.mutable_load_progress()->set_done(bytes);
          session.send(progress);
        });
      }
      progress.mutable_load_progress()->set_done(total);
      session.send(progress);
      StageRunnerOptions runner;
      runner.threads = options_.threads > 0 ? options_.threads
                                            : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024);
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
      // An unknown way of compression asks for less, and gets none.
      const bool asked = wanted.compression() == static_cast<uint32_t>(Compression::lz4);
      session.compression = asked ? Compression::lz4 : options_.link.compression;
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
    count_failed_load(*failure);
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
      fail(ErrorKind::bad_input, kWorkerPlace, "wanted a loaded stage before it connects, found none");
    }
    if (session->stage + 1 < session->plan.stages_size()) {
      const wire::PlannedStage& next = session->plan.stages(static_cast<int>(session->stage + 1));
      auto link =
          std::make_shared<Link>(options_.connect({next.address(), next.node()}, options_.timeouts.connect), options_.link);
      wire::Hello hello = self();
      hello.set_to_node(next.node());
      hello.set_epoch(session->epoch);
      hello.set_plan_sha256(session->plan_hash);
      const wire::HelloReply greeted = exchange_hello(*link, hello, kHelloSeconds);
      if (reads(greeted.self(), session->compression)) {
        link->compress(session->compression);
      } else {
        log(fmt::format("{} reads no LZ4: boundaries go to it as they are", next.node()));
      }
      session->listed = std::make_unique<Listed>(*this, link);
      {
        const std::lock_guard lock(session->mutex);
        session->downstream = std::move(link);
        if (session->closed) fail(ErrorKind::stage_lost, kWorkerPlace, "{}", session->reason);
      }
      session->watch = std::make_unique<LinkWatch>(
          *session->downstream, options_.timeouts.heartbeat_interval,
          2.0 * static_cast<double>(options_.timeouts.heartbeat_misses) * options_.timeouts.heartbeat_interval);
      Session* raw = session.get();
      session->reader = std::thread([this, raw] {
        const std::optional<Failure> lost = guard([&] {
          while (raw->downstream->receive()) {
          }
          fail(ErrorKind::stage_lost, kWorkerPlace, "the next stage left");
        });
        if (raw->is_closed()) return;
        const wire::PlannedStage& to = raw->plan.stages(static_cast<int>(raw->stage + 1));
        const Failure told{ErrorKind::stage_lost,
                           fmt::format("link from {} to {} ({}): {}", options_.node, to.node(), to.address(), lost->message)};
        log(told.message);
        raw->send(message_frame(FrameType::abort, to_wire(told, raw->stage + 1)));
      });
    }
    session->answered = steady_seconds();
    const std::lock_guard lock(counters_->mutex);
    counters_->state = "ready";
    counters_->connected = steady_seconds();
    counters_->compute = counters_->wait = counters_->send = 0.0;
    counters_->steps = 0;
    counters_->bytes_sent = counters_->bytes_received = 0;
  });
  if (failure) {
    *reply.mutable_failure() = to_wire(*failure, session->stage);
    log(fmt::format("not connected to the next stage: {}", failure->message));
  }
  session->send(answer);
}

void Worker::decide(const std::shared_ptr<Session>& session, const Frame& frame) {
  auto kept = std::make_shared<const Frame>(frame);
  const double queued = steady_seconds();
  // Numbers are looked at here, so that a gap is seen at once.
  uint64_t epoch = 0;
  {
    const std::lock_guard lock(session->mutex);
    epoch = session->epoch;
  }
  if (frame.epoch != static_cast<uint32_t>(epoch)) {
    fail(ErrorKind::bad_input, kWorkerPlace, "E_EPOCH: wanted epoch {}, found {}", epoch, frame.epoch);
  }
  if (frame.step != session->next_number) {
    fail(ErrorKind::bad_input, kWorkerPlace, "{}: wanted decision {}, found {}",
         frame.step < session->next_number ? "E_STEP_DUP" : "E_STEP_GAP", session->next_number, frame.step);
  }
  ++session->next_number;
  static_cast<void>(compute_.post([this, session, kept, queued] { run_step(session, kept->step, kept, queued); }));
}

void Worker::run_step(const std::shared_ptr<Session>& session, uint64_t number, const std::shared_ptr<const Frame>& frame,
                      double queued) {
  if (session->is_closed()) return;
  if (!loaded_ || !loaded_->runner || session->plan.stages_size() == 0 || (session->stage > 0) != (session->upstream_came())) {
    session->coordinator->cancel("a decision came before the stages were loaded and connected");
    return;
  }
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
      case wire::Decision::kProbe: {
        session->sender.post([] {}).wait();  // what it sends has a deadline of its own
        *done.mutable_status() = status();
        wire::Spans& spans = *done.mutable_spans();
        session->take_spans(spans);
        spans.set_queued(queued);
        const double time = steady_seconds();
        spans.set_waited(time);
        spans.set_began(time);
        spans.set_ended(time);
        break;
      }
      case wire::Decision::kStep: is_step = true; break;
      case wire::Decision::WHAT_NOT_SET:
        fail(ErrorKind::bad_input, kWorkerPlace, "decision {}: wanted something to do, found nothing", number);
    }
  });
  if (is_step) {
    Session::Arrival arrival;
    const double waited = steady_seconds();
    if (stage > 0) {
      arrival = session->take(number);
      session->grant();
      origin = arrival.handover.failure ? arrival.origin : stage;
    }
    const double began = steady_seconds();
    StageStep step;
    StageRunner::Outcome outcome;
    failure = guard([&] {
      step = from_wire(decision.step());
      for (const Rows& rows : step.step.rows) {
        if (rows.sample) check_sample(*rows.sample, runner.stage().vocab_size());
      }
      // Two stages must agree where a sequence stands (K3 spec 5): a step that one of them missed shows here.
      for (int i = 0; i < decision.step().rows_size() && !arrival.handover.failure; ++i) {
        const wire::Rows& rows = decision.step().rows(i);
        const TokenCount consumed = runner.state(SequenceId(rows.sequence())).consumed();
        if (consumed.value != rows.start()) {
          fail(ErrorKind::bad_input, kWorkerPlace, "E_CACHE_GEN: sequence {}: wanted {} tokens consumed, found {}",
               rows.sequence(), rows.start(), consumed);
        }
      }
    });
    if (failure && !arrival.handover.failure) arrival.handover = {std::nullopt, failure};
    outcome = runner.run(step, std::move(arrival.handover));
    failure = outcome.handover.failure;
    results = std::move(outcome.results);
    const double ended = steady_seconds();
    if (!last) {
      // The last stage's answer is what tokens wait for; a middle one's says how far the step has come.
      Session* raw = session.get();
      auto handover = std::make_shared<Handover>(std::move(outcome.handover));
      static_cast<void>(
          session->sender.post([this, raw, number, handover, origin, decision = std::make_shared<wire::Decision>(decision)] {
            const double start = steady_seconds();
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
            const double sent = steady_seconds();
            {
              const std::lock_guard lock(raw->mutex);
              wire::SentSpan& span = raw->sent.emplace_back();
              span.set_number(number);
              span.set_rows(row_count(decision->step()));
              span.set_began(start);
              span.set_ended(sent);
            }
            {
              const std::lock_guard lock(counters_->mutex);
              counters_->send += sent - start;
            }
            if (!lost || raw->is_closed()) return;
            const wire::PlannedStage& to = raw->plan.stages(static_cast<int>(raw->stage + 1));
            const Failure told{
                lost->kind, fmt::format("link from {} to {} ({}): {}", options_.node, to.node(), to.address(), lost->message)};
            raw->send(message_frame(FrameType::abort, to_wire(told, raw->stage + 1)));
          }));
    }
    wire::Spans& spans = *done.mutable_spans();
    session->take_spans(spans);
    spans.set_rows(row_count(decision.step()));
    spans.set_queued(queued);
    spans.set_waited(waited);
    spans.set_began(began);
    spans.set_ended(ended);
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
  if (done.has_spans()) session->answered = steady_seconds();
}
}  // namespace weft
