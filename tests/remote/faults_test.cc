// What becomes of requests and of the pipeline when a stage fails (distributed.md 7, 11.4).
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/remote/identity.h"
#include "pipeline/remote/messages.h"

#include "remote/in_process_cluster.h"
#include "remote/tamper.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

std::vector<int32_t> some_prompt() { return {3, 1, 4, 1, 5, 9, 2, 6}; }

bool comes_back(const RemoteExecutor& executor) {
  for (int i = 0; i < 1000 && !executor.ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return executor.ready();
}

// Stages whose connections pass through functions that a test can change while they run.
class RemoteFaults : public testing::Test {
 protected:
  std::unique_ptr<InProcessCluster> cluster(
      ClusterTimeouts timeouts = {
          .stage = 1.0, .connect = 1.0, .load = 20.0, .heartbeat_interval = 0.1, .heartbeat_misses = 3}) {
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7", .timeouts = timeouts};
    setup.tamper = [this](std::unique_ptr<MessageStream> stream, const std::string& to) -> std::unique_ptr<MessageStream> {
      if (bytes_) return std::make_unique<TamperStream>(std::move(stream), limits_, nullptr, bytes_);
      return std::make_unique<TamperStream>(std::move(stream), limits_, [this, to](Frame& frame) {
        const std::lock_guard lock(mutex_);
        return !change_ || change_(frame, to);
      });
    };
    return std::make_unique<InProcessCluster>(setup);
  }
  void set(std::function<bool(Frame& frame, const std::string& to)> change) {
    const std::lock_guard lock(mutex_);
    change_ = std::move(change);
  }

  // One decode step of a fresh sequence, with `fault` between prompt and step. Returns how the step ended.
  std::optional<Failure> step_with(RemoteExecutor& executor, const std::function<void()>& fault) {
    const SequenceId sequence = executor.create();
    const std::vector<float> prompt = feed(executor, sequence, some_prompt(), 64);
    EXPECT_FALSE(prompt.empty());
    fault();
    const std::optional<Failure> failure =
        guard([&] { static_cast<void>(feed(executor, sequence, std::vector<int32_t>{7}, 64)); });
    executor.release(sequence);
    return failure;
  }
  void expect_works(RemoteExecutor& executor) {
    ASSERT_TRUE(comes_back(executor));
    const auto local = open_executor(fixture("tiny-k3-8l"));
    EXPECT_TRUE(same_bits(logits_of(executor, some_prompt(), 64), logits_of(*local, some_prompt(), 64)));
  }

  FrameLimits limits_ = LinkOptions{.limits = {.tensors = 1 << 14}}.limits;
  std::mutex mutex_;
  std::function<bool(Frame& frame, const std::string& to)> change_;  // guarded by mutex_
  ChangeBytes bytes_;
};

// F2, and F1 with a prompt's step: every request that is open ends, once, with the stage and the cause; a restarted stage is
// taken back.
TEST_F(RemoteFaults, F2AStageDiesInDecode) {
  for (const int64_t stage : {0, 1, 2, 0, 1, 2, 1, 1, 1}) {
    const auto stages = cluster();
    const auto executor = stages->executor();
    const std::optional<Failure> failure = step_with(*executor, [&] { stages->kill(stage); });
    ASSERT_TRUE(failure) << stage;
    EXPECT_EQ(failure->kind, ErrorKind::stage_lost) << failure->message;
    EXPECT_THAT(failure->message, testing::StartsWith(fmt::format("[pipeline] stage {0} (node stage-{0}, ", stage)));
    ASSERT_TRUE(failure->stage);
    EXPECT_EQ(failure->stage->stage, stage);
    EXPECT_EQ(failure->stage->node, fmt::format("stage-{}", stage));
    // While it is away, requests are refused with the reason at once.
    const std::optional<Failure> refused = guard([&] { static_cast<void>(executor->create()); });
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->kind, ErrorKind::stage_lost);
    stages->start(stage);
    expect_works(*executor);
    EXPECT_GE(executor->epoch(), 2U);
  }
}

TEST_F(RemoteFaults, F1AStageDiesInPrefill) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  std::thread killer;
  set([&](Frame& frame, const std::string&) {
    if (frame.type == FrameType::payload && !killer.joinable()) killer = std::thread([&] { stages->kill(1); });
    return frame.type != FrameType::payload;
  });
  const std::optional<Failure> failure = guard([&] { static_cast<void>(logits_of(*executor, some_prompt(), 64)); });
  set(nullptr);
  const bool killed = killer.joinable();
  if (killed) killer.join();
  ASSERT_TRUE(failure);
  ASSERT_TRUE(killed) << failure->message;
  EXPECT_EQ(failure->kind, ErrorKind::stage_lost) << failure->message;
  stages->start(1);
  expect_works(*executor);
}

// Several requests in flight: each ends once, those of other sequences too, and old sequences stay dead.
TEST_F(RemoteFaults, EveryOpenStepEndsOnce) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  std::vector<SequenceId> sequences;
  for (int i = 0; i < 4; ++i) sequences.push_back(executor->create());
  set([&](Frame& frame, const std::string&) { return frame.type != FrameType::payload; });  // nothing arrives
  for (const SequenceId sequence : sequences) {
    Step step;
    Rows& rows = step.rows.emplace_back();
    rows.sequence = sequence;
    rows.ids = some_prompt();
    static_cast<void>(executor->submit(std::move(step)));
  }
  stages->kill(2);
  for (int i = 0; i < 4; ++i) {
    const Completion completion = executor->next();
    ASSERT_TRUE(completion.failure);
    EXPECT_EQ(completion.failure->kind, ErrorKind::stage_lost);
    EXPECT_EQ(completion.ticket, Ticket(i + 1));
  }
  set(nullptr);
  stages->start(2);
  ASSERT_TRUE(comes_back(*executor));
  const std::optional<Failure> dead = guard([&] { static_cast<void>(feed(*executor, sequences[0], some_prompt(), 64)); });
  ASSERT_TRUE(dead);
  EXPECT_EQ(dead->kind, ErrorKind::stage_lost);
  const std::optional<Failure> fork = guard([&] { static_cast<void>(executor->fork(sequences[1])); });
  ASSERT_TRUE(fork);
  for (const SequenceId sequence : sequences) executor->release(sequence);
  expect_works(*executor);
  EXPECT_EQ(executor->states().held().slots, 0);
}

// A boundary that is lost on the way: the stage that waits for it is named when its time is over.
TEST_F(RemoteFaults, ALostBoundaryEndsInATimeout) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  const std::optional<Failure> failure = step_with(*executor, [&] {
    set([](Frame& frame, const std::string& to) { return frame.type != FrameType::payload || to != "stage-1"; });
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_timeout) << failure->message;
  EXPECT_THAT(failure->message, AllOf(HasSubstr("stage 1"), HasSubstr("within 1.0 s")));
  set(nullptr);
  expect_works(*executor);
}

// F3, F4: a stage that neither answers nor closes its connection.
TEST_F(RemoteFaults, F4AFrozenStageIsLostAfterItsSilence) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  std::atomic<bool> frozen = false;
  const std::optional<Failure> failure = step_with(*executor, [&] {
    frozen = true;
    // What reaches it does not come out: no ping, no decision.
    set([](Frame&, const std::string& to) { return to != "stage-1"; });
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_lost) << failure->message;
  EXPECT_THAT(failure->message, AllOf(HasSubstr("stage-1"), HasSubstr("no sign of life for 0.6 s")));
  set(nullptr);
  expect_works(*executor);
}

// A stage that is slow and alive fails nothing.
TEST_F(RemoteFaults, ASlowStageIsWaitedFor) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  set([](Frame& frame, const std::string& to) {
    if (frame.type == FrameType::payload && to == "stage-2") std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return true;
  });
  EXPECT_FALSE(step_with(*executor, [] {}));
  EXPECT_EQ(executor->epoch(), 1U);
}

// F5: bytes that are changed on the way are seen, and are the end of that connection only.
TEST_F(RemoteFaults, F5CorruptedFrames) {
  std::atomic<int> corrupt = 0;
  bytes_ = [&](std::vector<std::byte>& bytes) {
    if (corrupt > 0 && bytes.size() > 200 && --corrupt == 0) bytes[bytes.size() - 3] ^= std::byte{0x40};
  };
  const auto stages = cluster();
  const auto executor = stages->executor();
  const std::optional<Failure> failure = step_with(*executor, [&] { corrupt = 1; });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_lost) << failure->message;
  EXPECT_THAT(failure->message, HasSubstr("checksum"));
  expect_works(*executor);
}

// A stage that answers what is no answer is lost; the others and the coordinator go on.
TEST_F(RemoteFaults, AStageThatAnswersGarbage) {
  for (const int kind : {0, 1, 2}) {
    std::atomic<bool> garbage = false;
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
    setup.tamper_back = [&](std::unique_ptr<MessageStream> stream, const std::string& to) -> std::unique_ptr<MessageStream> {
      if (to != "stage-1") return stream;
      return std::make_unique<TamperStream>(std::move(stream), limits_, [&](Frame& frame) {
        if (frame.type != FrameType::tokens || !garbage.exchange(false)) return true;
        const uint64_t step = frame.step;
        const uint32_t epoch = frame.epoch;
        if (kind == 0) frame = message_frame(FrameType::payload, wire::Done());
        if (kind == 1)
          frame.tensors.front() = FrameTensor::message(std::make_shared<const std::string>("\xff\xff\xff garbage"));
        if (kind == 2) {  // of the right form: results of nobody
          wire::Done done;
          done.set_number(step);
          done.add_results();
          done.add_results();
          frame = message_frame(FrameType::tokens, done);
        }
        frame.step = step;
        frame.epoch = epoch;
        return true;
      });
    };
    InProcessCluster stages(setup);
    const auto executor = stages.executor();
    const std::optional<Failure> failure = step_with(*executor, [&] {
      while (executor->epoch() != 1) {
      }
      garbage = true;
    });
    ASSERT_TRUE(failure) << kind;
    EXPECT_EQ(failure->kind, ErrorKind::stage_lost) << failure->message;
    EXPECT_THAT(failure->message, HasSubstr("stage 1 (node stage-1"));
    expect_works(*executor);
  }
}

// Orders that make no sense, from somebody who may give some: the connection ends, the worker lives.
TEST_F(RemoteFaults, AWorkerSurvivesNonsenseOrders) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  InProcessCluster stages(setup);
  for (int kind = 0; kind < 6; ++kind) {
    Link link(stages.connect({"unix:/stage-1", "stage-1"}), setup.link);
    wire::Hello hello = local_hello("test");
    hello.set_cluster("test");
    hello.set_node("coordinator");
    hello.set_to_node("stage-1");
    hello.set_boot(std::to_string(kind));
    hello.set_family("kimi_k3");
    hello.set_config_sha256(sha256_text(read_text_file(fixture("tiny-k3-8l") / "config.json")));
    hello.set_max_chunk(static_cast<uint64_t>(setup.link.limits.chunk));
    static_cast<void>(guard([&] {
      // The one before may be leaving still.
      while (guard([&] { static_cast<void>(exchange_hello(link, hello, 5.0)); })) return;
      wire::Control message;
      wire::Decision decision;
      decision.set_number(1);
      decision.mutable_step()->add_rows()->add_ids(3);
      if (kind == 0) link.send(message_frame(FrameType::step, decision));
      if (kind == 1) link.send(message_frame(FrameType::control, message));
      if (kind == 2) {
        message.mutable_connect()->set_epoch(7);
        link.send(message_frame(FrameType::control, message));
      }
      if (kind == 3) {
        message.mutable_load()->set_stage(9);
        link.send(message_frame(FrameType::control, message));
      }
      if (kind == 4) {
        message.mutable_survey()->mutable_plan()->add_stages()->set_end(1 << 30);
        link.send(message_frame(FrameType::control, message));
      }
      if (kind == 5) link.send(message_frame(FrameType::payload, wire::Done()));
      if (kind != 2 && kind != 3 && kind != 4) {
        while (link.receive()) {
        }
      } else {
        const std::optional<Frame> answer = link.receive();
        ASSERT_TRUE(answer);
        const auto told = message_of<wire::Control>(*answer);
        EXPECT_TRUE(told.connected().has_failure() || told.loaded().has_failure() || told.survey_reply().has_failure()) << kind;
      }
    }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto executor = stages.executor();
  expect_works(*executor);
}

TEST_F(RemoteFaults, F5ReorderedAndRepeatedDecisions) {
  for (const bool repeat : {false, true}) {
    const auto stages = cluster();
    const auto executor = stages->executor();
    int left = 1;
    const std::optional<Failure> failure = step_with(*executor, [&] {
      set([&, repeat](Frame& frame, const std::string& to) {
        if (frame.type != FrameType::step || to != "stage-2" || left-- <= 0) return true;
        if (repeat) {
          frame.step -= 1;
          return true;
        }
        return false;  // lost: the next one shows the gap
      });
      if (!repeat) static_cast<void>(executor->create());
    });
    ASSERT_TRUE(failure);
    EXPECT_THAT(failure->message, HasSubstr("stage-2"));
    set(nullptr);
    expect_works(*executor);
  }
}

// A stage that fails as it is told to.
class FailingStage final : public Stage {
 public:
  FailingStage(std::unique_ptr<Stage> stage, std::shared_ptr<std::atomic<int>> mode)
      : stage_(std::move(stage)), mode_(std::move(mode)) {}
  [[nodiscard]] LayerRange layers() const override { return stage_->layers(); }
  [[nodiscard]] int64_t layer_count() const override { return stage_->layer_count(); }
  [[nodiscard]] int64_t vocab_size() const override { return stage_->vocab_size(); }
  [[nodiscard]] int64_t hidden_size() const override { return stage_->hidden_size(); }
  [[nodiscard]] StatePool& states() override { return stage_->states(); }
  [[nodiscard]] Device& device() override { return stage_->device(); }
  [[nodiscard]] ByteCount bytes_per_token() const override { return stage_->bytes_per_token(); }
  [[nodiscard]] MemoryUse memory() const override { return stage_->memory(); }
  [[nodiscard]] Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) override {
    const int mode = mode_->exchange(0);
    if (mode == 1) fail(ErrorKind::bad_checkpoint, "layer 4", "wanted finite values, found NaN");
    if (mode == 2) throw std::bad_alloc();
    if (mode == 3) throw 7;  // what nobody expects
    if (mode == 4) std::this_thread::sleep_for(std::chrono::seconds(3));
    return stage_->forward(context, batch, std::move(in));
  }

 private:
  std::unique_ptr<Stage> stage_;
  std::shared_ptr<std::atomic<int>> mode_;
};

// F6: what a stage answers is its request's error, with its name. F7: the same for memory that it lacks. The others go on.
TEST_F(RemoteFaults, F6F7AnErrorOfAStageIsItsRequests) {
  const auto mode = std::make_shared<std::atomic<int>>(0);
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7"};
  setup.change_worker = [&](WorkerOptions& options) {
    if (options.node == "stage-1") {
      options.wrap_stage = [&](std::unique_ptr<Stage> stage) { return std::make_unique<FailingStage>(std::move(stage), mode); };
    }
  };
  InProcessCluster stages(setup);
  const auto executor = stages.executor();
  const SequenceId other = executor->create();
  const std::vector<float> before = feed(*executor, other, some_prompt(), 64);
  const std::vector<std::pair<ErrorKind, std::string>> wanted = {
      {ErrorKind::bad_checkpoint, "found NaN"}, {ErrorKind::unavailable, "memory"}, {ErrorKind::internal, ""}};
  for (int i = 0; i < 3; ++i) {
    const SequenceId sequence = executor->create();
    *mode = i + 1;
    const std::optional<Failure> failure = guard([&] { static_cast<void>(feed(*executor, sequence, some_prompt(), 64)); });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, wanted[static_cast<size_t>(i)].first) << failure->message;
    EXPECT_THAT(failure->message, AllOf(HasSubstr("stage 1 (node stage-1"), HasSubstr(wanted[static_cast<size_t>(i)].second)));
    executor->release(sequence);
  }
  EXPECT_EQ(executor->epoch(), 1U);
  // Another sequence lost nothing.
  const auto local = open_executor(fixture("tiny-k3-8l"));
  std::vector<int32_t> whole = some_prompt();
  whole.push_back(7);
  const std::vector<float> all = logits_of(*local, whole, 64);
  const std::vector<float> last = feed(*executor, other, std::vector<int32_t>{7}, 64);
  EXPECT_TRUE(same_bits(last, std::span(all).last(last.size())));
}

// A stage that counts how many compute at once.
class CountingStage final : public Stage {
 public:
  struct Count {
    std::atomic<int> now = 0;
    std::atomic<int> most = 0;
  };
  CountingStage(std::unique_ptr<Stage> stage, std::shared_ptr<Count> count)
      : stage_(std::move(stage)), count_(std::move(count)) {}
  [[nodiscard]] LayerRange layers() const override { return stage_->layers(); }
  [[nodiscard]] int64_t layer_count() const override { return stage_->layer_count(); }
  [[nodiscard]] int64_t vocab_size() const override { return stage_->vocab_size(); }
  [[nodiscard]] int64_t hidden_size() const override { return stage_->hidden_size(); }
  [[nodiscard]] StatePool& states() override { return stage_->states(); }
  [[nodiscard]] Device& device() override { return stage_->device(); }
  [[nodiscard]] ByteCount bytes_per_token() const override { return stage_->bytes_per_token(); }
  [[nodiscard]] MemoryUse memory() const override { return stage_->memory(); }
  [[nodiscard]] Output forward(ops::Context& context, const Batch& batch, std::optional<Boundary> in) override {
    const int now = ++count_->now;
    int most = count_->most;
    while (now > most && !count_->most.compare_exchange_weak(most, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    Output output = stage_->forward(context, batch, std::move(in));
    --count_->now;
    return output;
  }

 private:
  std::unique_ptr<Stage> stage_;
  std::shared_ptr<Count> count_;
};

// D9: with several steps on their way all stages compute at the same time (how long that takes: `weft bench pipeline`).
TEST_F(RemoteFaults, D9StagesComputeAtTheSameTime) {
  const auto count = std::make_shared<CountingStage::Count>();
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7"};
  setup.change_worker = [&](WorkerOptions& options) {
    options.wrap_stage = [&](std::unique_ptr<Stage> stage) { return std::make_unique<CountingStage>(std::move(stage), count); };
  };
  InProcessCluster stages(setup);
  const auto executor = stages.executor();
  for (int i = 0; i < 12; ++i) {
    Step step;
    Rows& rows = step.rows.emplace_back();
    rows.sequence = executor->create();
    rows.ids = some_prompt();
    static_cast<void>(executor->submit(std::move(step)));
  }
  for (int i = 0; i < 12; ++i) EXPECT_FALSE(executor->next().failure);
  EXPECT_EQ(count->most, 3);
}

// A stage whose computing hangs while its process lives: its time is over, and afterwards it is taken back.
TEST_F(RemoteFaults, AStageThatHangsIsNamed) {
  const auto mode = std::make_shared<std::atomic<int>>(0);
  ClusterSetup setup{
      .dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7", .timeouts = {.stage = 0.5, .heartbeat_interval = 0.1}};
  setup.change_worker = [&](WorkerOptions& options) {
    if (options.node == "stage-1") {
      options.wrap_stage = [&](std::unique_ptr<Stage> stage) { return std::make_unique<FailingStage>(std::move(stage), mode); };
    }
  };
  InProcessCluster stages(setup);
  const auto executor = stages.executor();
  const std::optional<Failure> failure = step_with(*executor, [&] { *mode = 4; });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_timeout) << failure->message;
  EXPECT_THAT(failure->message, HasSubstr("stage 1"));
  expect_works(*executor);
}

// F10: in place of a stage comes a node with another name: refused; with its own name: taken.
TEST_F(RemoteFaults, F10AReplacementMustHaveTheName) {
  bool renamed = false;
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"),
                     .layers = "0-3,4-7",
                     .timeouts = {.stage = 1.0, .connect = 0.2, .load = 0.5, .heartbeat_interval = 0.1}};
  setup.change_worker = [&](WorkerOptions& options) {
    if (renamed && options.node == "stage-1") options.node = "spare";
  };
  InProcessCluster stages(setup);
  const auto executor = stages.executor();
  stages.kill(1);
  renamed = true;
  stages.start(1);
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::string> said = stages.said();
    if (std::ranges::any_of(
            said, [](const std::string& line) { return line.find("node: wanted spare, found stage-1") != line.npos; }))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_THAT(stages.said(), testing::Contains(HasSubstr("node: wanted spare, found stage-1")));
  EXPECT_FALSE(executor->ready());
  stages.kill(1);
  renamed = false;
  stages.start(1);
  expect_works(*executor);
}

// F11: an answer that comes after its step was given up belongs to nothing.
TEST_F(RemoteFaults, F11ALateAnswerIsDropped) {
  const auto stages = cluster();
  const auto executor = stages->executor();
  std::shared_ptr<Frame> held;
  const std::optional<Failure> failure = step_with(*executor, [&] {
    set([&](Frame& frame, const std::string& to) {
      if (frame.type != FrameType::payload || to != "stage-2") return true;
      held = std::make_shared<Frame>(frame);
      return false;
    });
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_timeout);
  ASSERT_TRUE(comes_back(*executor));
  // The boundary of the step that is gone, before each that comes now.
  set([&](Frame& frame, const std::string& to) {
    if (frame.type == FrameType::payload && to == "stage-2" && held) {
      frame.epoch = held->epoch;
      held = nullptr;
    }
    return true;
  });
  // Its epoch is over: the frame is dropped, and the step waits in vain.
  const std::optional<Failure> second = guard([&] { static_cast<void>(logits_of(*executor, some_prompt(), 64)); });
  ASSERT_TRUE(second);
  EXPECT_EQ(second->kind, ErrorKind::stage_timeout);
  expect_works(*executor);
}

// F15: a stage that cannot read its weights says so at load; nothing is served, nothing hangs.
TEST_F(RemoteFaults, F15AShardThatIsMissing) {
  TemporaryFolder folder;
  const std::filesystem::path copy = folder.path() / "model";
  std::filesystem::create_directory(copy);
  for (const auto& entry : std::filesystem::directory_iterator(fixture("tiny-k3-8l"))) {
    if (entry.is_regular_file()) std::filesystem::copy(entry.path(), copy);
  }
  std::string removed;
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().extension() == ".safetensors" && entry.path().filename().string().find("model") == 0)
      removed = entry.path().filename();
  }
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().extension() == ".safetensors")
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 64);
  }
  ASSERT_FALSE(removed.empty());
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  setup.model_dirs["stage-1"] = copy;
  InProcessCluster stages(setup);
  const std::optional<Failure> failure = guard([&] { static_cast<void>(stages.executor()); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint) << failure->message;
  EXPECT_THAT(failure->message, HasSubstr("stage 1 (node stage-1"));
}

}  // namespace
}  // namespace weft
