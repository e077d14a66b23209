#include "engine/remote/pipeline_speed.h"

#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/guard.h"
#include "engine/bench/batch_speed.h"
#include "engine/bench/model_facts.h"
#include "engine/bench/timing.h"
#include "engine/remote/remote_loader.h"
#include "model/stage.h"
#include "pipeline/plan.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/local_cluster.h"
#include "pipeline/remote/remote_executor.h"
#include "pipeline/remote/worker.h"

namespace weft::bench {
namespace {

constexpr auto kStageTime = std::chrono::milliseconds(10);
constexpr auto kMoveTime = std::chrono::milliseconds(8);
constexpr int64_t kMicroBatches = 20;
constexpr int64_t kOverlapModelBytes = 256 << 20;
constexpr int64_t kPlanes = 4;  // of Kimi K3 before layer 31
constexpr int64_t kHidden = 7168;

// A stage whose step takes a fixed time more.
class SleepingStage final : public Stage {
 public:
  explicit SleepingStage(std::unique_ptr<Stage> stage) : stage_(std::move(stage)) {}
  [[nodiscard]] LayerRange layers() const override { return stage_->layers(); }
  [[nodiscard]] int64_t layer_count() const override { return stage_->layer_count(); }
  [[nodiscard]] int64_t vocab_size() const override { return stage_->vocab_size(); }
  [[nodiscard]] int64_t hidden_size() const override { return stage_->hidden_size(); }
  [[nodiscard]] StatePool& states() override { return stage_->states(); }
  [[nodiscard]] Device& device() override { return stage_->device(); }
  [[nodiscard]] ByteCount bytes_per_token() const override { return stage_->bytes_per_token(); }
  [[nodiscard]] MemoryUse memory() const override { return stage_->memory(); }
  [[nodiscard]] Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) override {
    const auto until = std::chrono::steady_clock::now() + kStageTime;
    Output output = stage_->forward(context, batch, std::move(in));
    std::this_thread::sleep_until(until);
    return output;
  }

 private:
  std::unique_ptr<Stage> stage_;
};

// A stream on which a boundary takes a fixed time.
class SlowStream final : public MessageStream {
 public:
  explicit SlowStream(std::unique_ptr<MessageStream> stream) : stream_(std::move(stream)) {}
  void write(const EncodedMessage& message) override {
    // A boundary is the one message with the bytes of a tensor in large parts.
    if (message.bytes() > 1024) std::this_thread::sleep_for(kMoveTime);
    stream_->write(message);
  }
  [[nodiscard]] std::optional<ReceivedMessage> read() override { return stream_->read(); }
  void cancel(const std::string& reason) noexcept override { stream_->cancel(reason); }
  void finish() noexcept override { stream_->finish(); }
  [[nodiscard]] const std::string& peer() const override { return stream_->peer(); }

 private:
  std::unique_ptr<MessageStream> stream_;
};

// Two workers in this process, joined by in-process streams.
class SleepingPipeline {
 public:
  explicit SleepingPipeline(const std::filesystem::path& dir) {
    ClusterNode coordinator;
    coordinator.id = "coordinator";
    coordinator.address = "unix:/coordinator";
    coordinator.role = NodeRole::coordinator;
    cluster_.nodes.push_back(coordinator);
    cluster_.stages = 2;
    for (int64_t s = 0; s < 2; ++s) {
      ClusterNode node;
      node.id = fmt::format("stage-{}", s);
      node.address = "unix:/" + node.id;
      node.stage = s;
      cluster_.nodes.push_back(node);
      WorkerOptions worker;
      worker.cluster = cluster_.name;
      worker.node = node.id;
      worker.stage = s;
      worker.coordinator = "coordinator";
      worker.model_dir = dir;
      worker.threads = 1;
      worker.link = link_options();
      worker.connect = [this](const NodeAddress& to, double) { return std::make_unique<SlowStream>(connect(to)); };
      worker.wrap_stage = [](std::unique_ptr<Stage> stage) { return std::make_unique<SleepingStage>(std::move(stage)); };
      workers_.push_back(std::make_unique<Worker>(worker));
    }
    RemoteOptions options;
    options.cluster = cluster_;
    options.config = load_model_config(dir);
    options.config_text = read_text_file(dir / "config.json");
    options.link = link_options();
    options.connect = [this](const NodeAddress& to, double, const std::function<bool()>&) { return connect(to); };
    options.plan = [&](const std::vector<int64_t>&) {
      PlanOptions wanted;
      wanted.stages = 2;
      return make_plan(plan_model(Checkpoint(dir)), wanted);
    };
    executor_ = std::make_unique<RemoteExecutor>(std::move(options));
  }
  ~SleepingPipeline() {
    executor_.reset();
    for (const auto& worker : workers_) worker->stop("the measurement is over");
    for (std::thread& thread : threads_) thread.join();
  }
  SleepingPipeline(const SleepingPipeline&) = delete;
  SleepingPipeline& operator=(const SleepingPipeline&) = delete;

  // Milliseconds for all micro-batches.
  double run() {
    std::vector<SequenceId> sequences;
    for (int64_t i = 0; i < kMicroBatches; ++i) sequences.push_back(executor_->create());
    const Timer timer;
    int64_t done = 0;
    int64_t sent = 0;
    while (done < kMicroBatches) {
      for (; sent < kMicroBatches && sent < done + 4; ++sent) {
        Step step;
        Rows& rows = step.rows.emplace_back();
        rows.sequence = sequences[static_cast<size_t>(sent)];
        rows.ids = {1, 2, 3, 4};
        rows.sample = SampleRequest{};
        static_cast<void>(executor_->submit(std::move(step)));
      }
      const Completion completion = executor_->next();
      if (completion.failure) completion.failure->raise();
      ++done;
    }
    const double milliseconds = 1e3 * timer.seconds();
    for (const SequenceId sequence : sequences) executor_->release(sequence);
    return milliseconds;
  }

 private:
  std::unique_ptr<MessageStream> connect(const NodeAddress& to) {
    auto [here, there] = in_process_streams();
    Worker* worker = workers_[to.node == "stage-0" ? 0 : 1].get();
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([worker, stream = std::make_shared<std::unique_ptr<MessageStream>>(std::move(there))] {
      static_cast<void>(guard([&] { worker->serve(std::move(*stream), {}); }));
    });
    return std::move(here);
  }

  ClusterConfig cluster_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;  // guarded by mutex_
  std::unique_ptr<RemoteExecutor> executor_;
};

Figure overlap(const PipelineOptions& options) {
  SleepingPipeline pipeline(options.model.dir);
  Figure figure{fmt::format("{} micro-batches, 2 stages of 10 ms, 8 ms of transfer", kMicroBatches), "ms", {}, {}};
  static_cast<void>(pipeline.run());
  for (int i = 0; i < options.repeats; ++i) figure.samples.push_back(pipeline.run());
  figure.limit = Figure::Limit{"21 x 10 ms + 8 ms", 218.0};
  return figure;
}

Boundary boundary_of(int64_t rows) {
  Boundary boundary;
  boundary.layer = LayerIndex(31);
  const auto plane = [&] { return std::make_shared<const Tensor>(Tensor::zeros(DType::f32, {rows, kHidden})); };
  boundary.hidden = plane();
  for (int64_t i = 1; i < kPlanes; ++i) boundary.blocks.push_back(plane());
  return boundary;
}

// The far end: takes each boundary apart and sends it back.
void echo(std::unique_ptr<MessageStream> stream) {
  Link link(std::move(stream), link_options());
  const BoundaryForm form{LayerIndex(31), kPlanes - 1, false, kHidden, DType::bf16};
  while (std::optional<Frame> frame = link.receive()) {
    const TensorView& view = frame->tensors.front().view;
    const Boundary boundary = unpack_boundary(view, false, form, view.shape[0]);
    link.grant(1);
    Frame back;
    back.type = FrameType::payload;
    back.tensors.push_back(
        FrameTensor::of(TensorKind::hidden, std::make_shared<const Tensor>(pack_boundary(boundary, DType::bf16))));
    link.send(back);
  }
}

std::vector<Figure> hops(int repeats) {
  const GrpcServer server("127.0.0.1:0", {}, [](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    static_cast<void>(guard([&] { echo(std::move(stream)); }));
  });
  Link link(connect_grpc({server.address(), ""}, {}, 5.0), link_options());
  const BoundaryForm form{LayerIndex(31), kPlanes - 1, false, kHidden, DType::bf16};
  std::vector<Figure> figures;
  std::vector<std::byte> from(64 << 20, std::byte{1});
  std::vector<std::byte> to(from.size());
  const double copy =
      median(rates(repeats, 0.1, static_cast<double>(from.size()), [&] { std::memcpy(to.data(), from.data(), from.size()); }));
  for (const int64_t rows : {1, 8, 512}) {
    const Boundary boundary = boundary_of(rows);
    Figure figure{fmt::format("hop of {} rows", rows), "us", {}, {}};
    const auto there_and_back = [&] {
      Frame frame;
      frame.type = FrameType::payload;
      frame.tensors.push_back(
          FrameTensor::of(TensorKind::hidden, std::make_shared<const Tensor>(pack_boundary(boundary, DType::bf16))));
      link.send(frame);
      const std::optional<Frame> back = link.receive();
      if (!back) fail(ErrorKind::stage_lost, "bench", "the far end left");
      static_cast<void>(unpack_boundary(back->tensors.front().view, false, form, rows));
      link.grant(1);
    };
    for (const double rate : rates(repeats, 0.2, 1.0, there_and_back)) figure.samples.push_back(0.5e6 / rate);
    const auto bytes = static_cast<double>(rows * kPlanes * kHidden * 2);
    figure.limit = Figure::Limit{"its bytes at the speed of memcpy", 1e6 * bytes / copy};
    figure.more = {{"payload_bytes", bytes}, {"GB_per_s", bytes / figure.value() / 1e3}};
    figures.push_back(std::move(figure));
  }
  link.finish();
  link.cancel("the measurement is over");
  return figures;
}

std::vector<Figure> throughput(const PipelineOptions& options, Json& facts, std::vector<std::string>& notes) {
  std::vector<Figure> figures;
  Figure one{"decode, 1 stage", "tokens/s", {}, {}};
  Figure several{fmt::format("decode, {} stages", options.stages), "tokens/s", {}, {}};
  const LoadedExecutor here = load_executor(options.model);
  LocalClusterOptions local;
  local.program = options.program;
  local.stages = options.stages;
  const int threads = std::max(1, here.threads / static_cast<int>(options.stages));
  local.arguments = {"-m", options.model.dir.string(), "--threads", fmt::format("{}", threads)};
  const auto processes = std::make_shared<LocalCluster>(std::move(local));
  RemoteModelOptions remote;
  remote.model = options.model;
  remote.model.pp_size = options.stages;
  remote.cluster = processes->config();
  remote.before_connect = [&](int64_t stage) { processes->check(stage); };
  remote.processes = processes;
  remote.one_host = true;
  const LoadedExecutor there = load_remote_executor(std::move(remote));
  // Side by side in time: the machine's mood is the same for both.
  for (int i = 0; i < options.repeats + 1; ++i) {
    for (const auto& [executor, figure] : {std::pair{here.executor.get(), &one}, std::pair{there.executor.get(), &several}}) {
      const double rate = decode_rates(*executor, options.requests, options.tokens, 1).front();
      if (i > 0) figure->samples.push_back(rate);
    }
  }
  several.limit = one.as_limit();
  // What the plan says and what the processes have in memory.
  auto& remote_executor = dynamic_cast<RemoteExecutor&>(*there.executor);
  Json stages = remote_executor.stage_report();
  for (size_t s = 0; s < stages.size(); ++s) {
    const PlanStage& planned = remote_executor.plan().stages[s];
    stages[s]["planned"] = {
        {"weight_bytes", planned.weights}, {"state_bytes", planned.state}, {"workspace_bytes", planned.workspace}};
    stages[s].erase("address");
  }
  facts["stages"] = std::move(stages);
  notes.push_back(fmt::format("{} stages with {} threads each, one stage with {}; {} requests side by side", options.stages,
                              threads, here.threads, options.requests));
  figures.push_back(one);
  figures.push_back(several);
  return figures;
}

}  // namespace

Record bench_pipeline(const PipelineOptions& options) {
  Record record{"pipeline", {}, Json::object(), {}};
  record.facts["model"] = options.model.dir.filename().string();
  const std::shared_ptr<const ModelConfig> config = load_model_config(options.model.dir);
  if (Checkpoint(options.model.dir).weight_bytes(config->all_layers()) < ByteCount(kOverlapModelBytes)) {
    record.figures.push_back(overlap(options));
  } else {
    record.notes.emplace_back("overlap is measured with a small model, whose stages work less than the 10 ms that they sleep");
  }
  for (Figure& figure : hops(options.repeats)) record.figures.push_back(std::move(figure));
  for (Figure& figure : throughput(options, record.facts, record.notes)) record.figures.push_back(std::move(figure));
  record.notes.emplace_back(
      "a hop copies a boundary once to pack it, once from the socket into a message, once to take it apart, and as often as "
      "the kernel "
      "does; sending copies nothing");
  return record;
}

}  // namespace weft::bench
