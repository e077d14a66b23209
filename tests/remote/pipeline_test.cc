// The pipeline over a coordinator and workers, joined by in-process streams: the same bits as one process, and what errors do.
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/state_file.h"
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

constexpr int64_t kChunk = 16;

std::vector<int32_t> prompt_of(int64_t length, uint32_t seed = 7) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761U + 1;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 1664525U + 1013904223U;
    ids.push_back(static_cast<int32_t>((state >> 8) % 100));
  }
  return ids;
}

ops::SamplingParams sampled() {
  ops::SamplingParams params;
  params.temperature = 0.8F;
  params.top_p = 0.95F;
  params.seed = 5;
  return params;
}

ModelSetup setup_of(ops::Profile profile) {
  ModelSetup setup;
  setup.profile = profile;
  return setup;
}

std::string failure_of(const std::function<void()>& body, ErrorKind kind) {
  const std::optional<Failure> failure = guard(body);
  if (!failure) return "no failure";
  EXPECT_EQ(to_string(failure->kind), to_string(kind)) << failure->message;
  return failure->message;
}

struct Model {
  std::string name;
  std::string layers;
};

class RemoteBits : public testing::TestWithParam<std::tuple<Model, ops::Profile>> {};

TEST_P(RemoteBits, EqualsOneProcess) {
  const auto& [model, profile] = GetParam();
  InProcessCluster cluster({.dir = fixture(model.name), .layers = model.layers, .profile = profile});
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture(model.name), setup_of(profile));
  EXPECT_EQ(remote->fingerprint(), local->fingerprint());
  EXPECT_EQ(remote->vocab_size(), local->vocab_size());
  EXPECT_GE(remote->bytes_per_token().value, local->bytes_per_token().value);  // a tied table stands on two stages
  const std::vector<int32_t> prompt = prompt_of(30);
  EXPECT_TRUE(same_bits(logits_of(*remote, prompt, kChunk), logits_of(*local, prompt, 64)));
  EXPECT_EQ(generate(*remote, prompt, 8, kChunk, sampled()), generate(*local, prompt, 8, 64, sampled()));
}

// K3, K4 (block size 4: a boundary at 4 is sealed by the sender), K5, K6 and Q8: stages that seal nothing, of linear layers
// only.
INSTANTIATE_TEST_SUITE_P(
    K3K4K5K6Q8, RemoteBits,
    testing::Combine(testing::Values(Model{"tiny-k3-8l", "0-3,4-7"}, Model{"tiny-k3-8l", "0-2,3-4,5-7"},
                                     Model{"tiny-k3-8l", "0,1-2,3-6,7"}, Model{"tiny-k3-26l", "0-11,12-24,25"},
                                     Model{"tiny-qwen3-next-8l", "0-2,3-7"}, Model{"tiny-qwen3-next-8l", "0-2,3,4-6,7"},
                                     Model{"tiny-qwen3-next-tied-mlponly", "0-1,2-5"}, Model{"tiny-kimi-linear", "0-1,2-5"},
                                     Model{"tiny-kimi-linear-hf", "0-2,3-7"}),
                     testing::Values(ops::Profile::exact, ops::Profile::bf16)));

// D10, Q9, K14: sequences of mixed lengths in one step, several steps in flight.
TEST(RemotePipeline, D10NineSequencesOnThreeStagesEqualOneProcess) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7"});
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  std::vector<SequenceId> sequences;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> drawn(9);
  for (int64_t i = 0; i < 9; ++i) {
    sequences.push_back(remote->create());
    prompts.push_back(prompt_of(1 + 7 * i, static_cast<uint32_t>(i + 1)));
  }
  // Three groups of three; four steps are open at a time.
  std::deque<size_t> open;
  const auto submit = [&](size_t group) {
    Step step;
    for (size_t i = 3 * group; i < 3 * group + 3; ++i) {
      Rows rows;
      rows.sequence = sequences[i];
      rows.ids = drawn[i].empty() ? prompts[i] : std::vector<int32_t>{drawn[i].back()};
      rows.sample = SampleRequest{};
      rows.sample->params = sampled();
      step.rows.push_back(std::move(rows));
    }
    static_cast<void>(remote->submit(std::move(step)));
    open.push_back(group);
  };
  for (size_t group = 0; group < 3; ++group) submit(group);
  for (int done = 0; done < 30; ++done) {
    const Completion completion = remote->next();
    ASSERT_FALSE(completion.failure) << completion.failure->message;
    const size_t group = open.front();
    open.pop_front();
    for (size_t i = 0; i < 3; ++i) drawn[3 * group + i].push_back(completion.results[i].sampled->id);
    if (done < 27) submit(group);
  }
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(drawn[i], generate(*local, prompts[i], 10, 512, sampled())) << i;
}

// K7: the same packing for prefill and decode.
TEST(RemotePipeline, K7PromptLengths) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  for (const int64_t length : {1, 11, 12, 13, 25}) {
    EXPECT_EQ(generate(*remote, prompt_of(length), 6, 512, greedy()), generate(*local, prompt_of(length), 6, 512, greedy()))
        << length;
  }
}

// Forks, checkpoints and saved states are the executor's, not the stages'; a state goes from any split to any other.
TEST(RemotePipeline, StatesMoveBetweenSplits) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  const std::vector<int32_t> prompt = prompt_of(70);
  const auto head = std::span(prompt).first(40);
  const auto tail = std::span(prompt).subspan(40);
  const SequenceId sequence = remote->create();
  const std::vector<float> first = feed(*remote, sequence, head, 64);
  const SequenceId fork = remote->fork(sequence);
  TemporaryFolder folder;
  remote->save(sequence, folder.path() / "a.safetensors", head);
  const std::vector<float> rest = feed(*remote, fork, tail, 7);
  // Into one process, then into another split.
  const SequenceId there = local->load(folder.path() / "a.safetensors");
  EXPECT_TRUE(same_bits(rest, feed(*local, there, tail, 64)));
  remote.reset();
  cluster.split("0-5,6-7");
  remote = cluster.executor();
  const SequenceId again = remote->load(folder.path() / "a.safetensors");
  EXPECT_EQ(remote->consumed(again), TokenCount(40));
  EXPECT_TRUE(same_bits(rest, feed(*remote, again, tail, 64)));
}

// A wrong boundary, or a state that went another way, is the error of that request; the stage serves on (K8, K9, K11).
TEST(RemotePipeline, K11ErrorsOfAStageArriveAtTheRequest) {
  std::atomic<bool> narrow = false;
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  setup.tamper = [&](std::unique_ptr<MessageStream> stream, const std::string&) -> std::unique_ptr<MessageStream> {
    return std::make_unique<TamperStream>(std::move(stream), setup.link.limits, [&](Frame& frame) {
      if (frame.type == FrameType::payload && narrow.exchange(false)) {
        const FrameTensor& whole = frame.tensors.front();
        const Shape shape{whole.view.shape[0], whole.view.shape[1] - 1};
        frame.tensors.front() =
            FrameTensor::of(whole.kind, std::make_shared<const Tensor>(Tensor::zeros(whole.view.dtype, shape)));
      }
      return true;
    });
  };
  InProcessCluster cluster(setup);
  const auto remote = cluster.executor();
  const std::vector<int32_t> prompt = prompt_of(5);
  const std::vector<float> wanted = logits_of(*remote, prompt, 64);
  narrow = true;
  const SequenceId broken = remote->create();
  EXPECT_THAT(failure_of([&] { static_cast<void>(feed(*remote, broken, prompt, 64)); }, ErrorKind::bad_input),
              AllOf(HasSubstr("stage 1"), HasSubstr("boundary"), HasSubstr("before layer 4")));
  EXPECT_THAT(failure_of([&] { static_cast<void>(feed(*remote, broken, prompt, 64)); }, ErrorKind::unavailable),
              HasSubstr("an earlier step of it failed"));
  EXPECT_TRUE(remote->ready());
  EXPECT_EQ(remote->epoch(), 1U);
  EXPECT_TRUE(same_bits(logits_of(*remote, prompt, 64), wanted));
  EXPECT_THAT(
      failure_of([&] { static_cast<void>(logits_of(*remote, std::vector<int32_t>{1 << 20}, 64)); }, ErrorKind::bad_input),
      HasSubstr("token ids"));
  EXPECT_TRUE(same_bits(logits_of(*remote, prompt, 64), wanted));
}

// C12: index tables of one type: idle slots and padded batches beside each other on two stages.
TEST(RemotePipeline, C12IdleSlotsAndMixedBatches) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  for (Executor* executor : {static_cast<Executor*>(remote.get()), static_cast<Executor*>(local.get())}) {
    static_cast<void>(executor->create());  // idle: never used
  }
  const auto run = [&](Executor& executor) {
    std::vector<SequenceId> sequences = {executor.create(), executor.create(), executor.create()};
    executor.release(sequences[1]);
    Step step;
    for (const size_t i : {size_t{0}, size_t{2}}) {
      Rows rows;
      rows.sequence = sequences[i];
      rows.ids = prompt_of(i == 0 ? 65 : 1);
      rows.logits = Rows::Logits::last;
      step.rows.push_back(std::move(rows));
    }
    std::vector<float> logits;
    for (const RowsResult& result : executor.run(std::move(step))) {
      const auto values = result.logits.as<float>();
      logits.insert(logits.end(), values.begin(), values.end());
    }
    return logits;
  };
  EXPECT_TRUE(same_bits(run(*remote), run(*local)));
}

// In bf16 a boundary is (K + 1) * D * 2 bytes a token, in exact twice that.
TEST(RemotePipeline, BytesOnTheWire) {
  for (const ops::Profile profile : {ops::Profile::bf16, ops::Profile::exact}) {
    std::atomic<int64_t> bytes = 0;
    std::atomic<int64_t> rows = 0;
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-4,5-7", .profile = profile};
    setup.tamper = [&](std::unique_ptr<MessageStream> stream, const std::string&) -> std::unique_ptr<MessageStream> {
      return std::make_unique<TamperStream>(std::move(stream), setup.link.limits, [&](Frame& frame) {
        if (frame.type != FrameType::payload) return true;
        bytes += frame.tensors.front().view.bytes();
        for (const SequenceRow& row : frame.rows) rows += row.count;
        return true;
      });
    };
    InProcessCluster cluster(setup);
    const auto remote = cluster.executor();
    static_cast<void>(generate(*remote, prompt_of(20), 3, 512, greedy()));
    const int64_t width = (2 + 1) * load_model_config(fixture("tiny-k3-8l"))->hidden_size;  // K = ceil(5 / 4)
    EXPECT_EQ(rows, 22);
    EXPECT_EQ(bytes, 22 * width * (profile == ops::Profile::bf16 ? 2 : 4));
  }
}

// A stage compresses for one that reads it: told by the coordinator, or of itself; another build without LZ4 gets plain frames.
TEST(RemotePipeline, Lz4IsUsedWhereBothEndsHaveIt) {
  enum class Who : uint8_t { nobody, coordinator, worker, coordinator_but_old_reader };
  const auto local = open_executor(fixture("tiny-k3-8l"));
  std::map<Who, int64_t> bytes;
  for (const Who who : {Who::nobody, Who::coordinator, Who::worker, Who::coordinator_but_old_reader}) {
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-4,5-7"};
    setup.change_coordinator = [&](RemoteOptions& options) {
      if (who == Who::coordinator || who == Who::coordinator_but_old_reader) options.link.compression = Compression::lz4;
    };
    setup.change_worker = [&](WorkerOptions& options) {
      if (who == Who::worker) options.link.compression = Compression::lz4;
    };
    setup.tamper_back = [&](std::unique_ptr<MessageStream> stream, const std::string&) -> std::unique_ptr<MessageStream> {
      if (who != Who::coordinator_but_old_reader) return stream;
      return std::make_unique<TamperStream>(std::move(stream), setup.link.limits, [&](Frame& frame) {
        if (frame.type != FrameType::control) return true;
        auto message = message_of<wire::Control>(frame);
        if (!message.has_hello_reply()) return true;
        message.mutable_hello_reply()->mutable_self()->clear_encodings();
        frame = message_frame(FrameType::control, message);
        return true;
      });
    };
    InProcessCluster cluster(setup);
    const auto remote = cluster.executor();
    Step step;
    for (int i = 0; i < 4; ++i) {
      Rows& rows = step.rows.emplace_back();
      rows.sequence = remote->create();
      rows.ids = prompt_of(40);
      rows.logits = Rows::Logits::last;
    }
    const std::vector<RowsResult> results = remote->run(std::move(step));
    for (const RowsResult& result : results)
      EXPECT_TRUE(same_bits(result.logits.as<float>(), results.front().logits.as<float>()));
    EXPECT_EQ(generate(*remote, prompt_of(30), 4, 512, sampled()), generate(*local, prompt_of(30), 4, 512, sampled()));
    bytes[who] = remote->stage_report().front().at("bytes_sent").get<int64_t>();
  }
  EXPECT_LT(2 * bytes[Who::coordinator], bytes[Who::nobody]);
  EXPECT_LT(2 * bytes[Who::worker], bytes[Who::nobody]);
  EXPECT_GT(2 * bytes[Who::coordinator_but_old_reader], bytes[Who::nobody]);
}

// D11: memory of 1,000 sequences comes back.
TEST(RemotePipeline, D11SequencesAreReleasedOnAllStages) {
  InProcessCluster cluster({.dir = fixture("tiny-kimi-linear"), .layers = "0-1,2-5"});
  const auto remote = cluster.executor();
  for (int i = 0; i < 1000; ++i) {
    const SequenceId sequence = remote->create();
    if (i % 100 == 0) static_cast<void>(feed(*remote, sequence, prompt_of(3), 64));
    remote->release(sequence);
  }
  static_cast<void>(logits_of(*remote, prompt_of(2), 64));  // all of that is done now
  for (const Json& stage : remote->stage_report()) {
    EXPECT_LE(stage.at("sequences").get<int64_t>(), 1);
    EXPECT_EQ(stage.at("state"), "ready");
  }
  EXPECT_EQ(remote->states().held().slots, 0);
}

// D7, K2: another version, model or plan: every difference of every stage is listed.
TEST(RemoteHandshake, D7AllDifferencesAreListed) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  setup.model_dirs["stage-1"] = fixture("tiny-kimi-linear");
  setup.change_worker = [](WorkerOptions& options) {
    if (options.node == "stage-0") options.cluster = "another";
  };
  InProcessCluster cluster(setup);
  EXPECT_THAT(failure_of([&] { static_cast<void>(cluster.executor()); }, ErrorKind::handshake),
              AllOf(HasSubstr("stage 0 (node stage-0"), HasSubstr("cluster: wanted another, found test"),
                    HasSubstr("stage 1 (node stage-1"), HasSubstr("family: wanted kimi_linear, found kimi_k3"),
                    HasSubstr("config.json (SHA-256)")));
}

TEST(RemoteHandshake, AnotherProtocolVersionIsRefused) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  InProcessCluster cluster(setup);
  // A coordinator of a later version, by hand.
  Link link(cluster.connect({"unix:/stage-0", "stage-0"}), setup.link);
  wire::Hello hello = local_hello("later");
  hello.set_major(2);
  hello.set_cluster("test");
  hello.set_node("coordinator");
  hello.set_to_node("stage-0");
  EXPECT_THAT(failure_of([&] { static_cast<void>(exchange_hello(link, hello, 5.0)); }, ErrorKind::handshake),
              HasSubstr("protocol: wanted 1.0 (build test), found 2.0 (build later)"));
}

// F16: two coordinators: the second is refused with the first one's name, and the first goes on.
TEST(RemoteHandshake, F16ASecondCoordinatorIsRefused) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  const auto first = cluster.executor();
  EXPECT_THAT(failure_of([&] { static_cast<void>(cluster.executor()); }, ErrorKind::handshake),
              HasSubstr("coordinator in charge: wanted none, found coordinator"));
  EXPECT_EQ(generate(*first, prompt_of(4), 2, 64, greedy()).size(), 2U);
}

// F9: a coordinator that goes and comes: the weights stay, the sequences do not.
TEST(RemoteHandshake, F9WeightsOutliveTheCoordinator) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  auto executor = cluster.executor();
  const SequenceId sequence = executor->create();
  const std::vector<float> wanted = feed(*executor, sequence, prompt_of(9), 64);
  executor.reset();
  for (const int64_t stage : {0, 1}) {
    for (int i = 0; i < 500 && cluster.worker(stage)->status().sequences() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(cluster.worker(stage)->status().sequences(), 0) << stage;
  }
  const size_t before = cluster.said().size();
  executor = cluster.executor();
  const std::vector<std::string> said = cluster.said();
  EXPECT_THAT(std::vector<std::string>(said.begin() + static_cast<int64_t>(before), said.end()),
              testing::UnorderedElementsAre(AllOf(HasSubstr("stage 0"), HasSubstr("layers 0-3 are there still")),
                                            AllOf(HasSubstr("stage 1"), HasSubstr("layers 4-7 are there still"))));
  EXPECT_EQ(executor->epoch(), 2U);
  EXPECT_TRUE(same_bits(logits_of(*executor, prompt_of(9), 64), wanted));
}

TEST(RemoteHandshake, NobodyThereIsUnreachable) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7", .timeouts = {.connect = 0.2, .load = 0.5}});
  cluster.kill(1);
  EXPECT_THAT(failure_of([&] { static_cast<void>(cluster.executor()); }, ErrorKind::unreachable),
              AllOf(HasSubstr("stage 1 (node stage-1"), HasSubstr("connection refused")));
}

// D2: a worker that comes later than its coordinator.
// Ctrl-C while stages are missing, or are there and say nothing.
TEST(RemoteHandshake, TheStartCanBeInterrupted) {
  using Clock = std::chrono::steady_clock;
  for (const bool silent : {false, true}) {
    std::atomic<bool> interrupted = false;
    std::vector<std::unique_ptr<MessageStream>> unheard;
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7", .timeouts = {.connect = 60.0, .load = 60.0}};
    setup.change_coordinator = [&](RemoteOptions& options) {
      options.interrupted = [&] { return interrupted.load(); };
      if (!silent) return;
      options.connect = [&](const NodeAddress&, double, const std::function<bool()>&) {
        auto [here, there] = in_process_streams();
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        unheard.push_back(std::move(there));
        return std::move(here);
      };
    };
    InProcessCluster cluster(setup);
    cluster.kill(1);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      interrupted = true;
    });
    const auto begin = Clock::now();
    const std::optional<Failure> failure = guard([&] { (void)cluster.executor(); });
    later.join();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, ErrorKind::unavailable) << failure->message;
    EXPECT_THAT(failure->message, HasSubstr("stopped while it waited"));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20)) << "the limits are 60 s";
  }
}

// A trace that the disk does not take whole is not silently short.
TEST(RemotePipeline, ATraceThatIsNotWrittenIsSaid) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7", .trace = "/dev/full"});
  (void)logits_of(*cluster.executor(), prompt_of(3), kChunk);
  EXPECT_THAT(cluster.said(), testing::Contains(testing::AllOf(HasSubstr("/dev/full"), HasSubstr("whole trace"))));
}

// Bits are promised where all stages compute alike; where they do not, the run says so.
TEST(RemoteHandshake, DifferentOperatorsAreSaid) {
  for (const bool differs : {false, true}) {
    ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
    setup.change_worker = [&](WorkerOptions& options) {
      if (differs && options.node == "stage-1") options.backend = ops::Backend::reference;
    };
    InProcessCluster cluster(setup);
    (void)cluster.executor();
    const auto said = testing::Contains(AllOf(HasSubstr("different operators"), HasSubstr("stage 1: reference")));
    if (differs) {
      EXPECT_THAT(cluster.said(), said);
    } else {
      EXPECT_THAT(cluster.said(), testing::Not(testing::Contains(HasSubstr("different operators"))));
    }
  }
}

// The load timeout is one limit for all that happens before the stages are ready.
TEST(RemoteHandshake, TheLoadTimeoutIsOneLimit) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7", .timeouts = {.connect = 1.0, .load = 1.5}};
  setup.tamper_back = [](std::unique_ptr<MessageStream> stream, const std::string&) -> std::unique_ptr<MessageStream> {
    // Every answer of a stage comes a second late: two of them are too late.
    return std::make_unique<TamperStream>(std::move(stream), FrameLimits{.tensors = 1 << 14}, [](Frame& frame) {
      if (frame.type == FrameType::control) std::this_thread::sleep_for(std::chrono::seconds(1));
      return true;
    });
  };
  InProcessCluster cluster(setup);
  const std::optional<Failure> failure = guard([&] { (void)cluster.executor(); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::stage_timeout) << failure->message;
}

// Where the stage before reaches a stage is the stage's own word.
TEST(RemoteHandshake, AdvertisedAddressesGoToTheStageBefore) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"};
  std::mutex mutex;
  std::vector<std::string> reached;
  InProcessCluster* made = nullptr;
  setup.change_worker = [&](WorkerOptions& options) {
    if (options.node == "stage-1") options.advertise = "inside.example:19002";
    options.connect = [&](const NodeAddress& to, double) {
      const std::lock_guard lock(mutex);
      reached.push_back(to.address);
      return made->connect(to);
    };
  };
  InProcessCluster cluster(setup);
  made = &cluster;
  const auto executor = cluster.executor();
  EXPECT_THAT(reached, testing::ElementsAre("inside.example:19002"));
}

TEST(RemoteHandshake, D2StagesStartInAnyOrder) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  cluster.kill(0);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    cluster.start(0);
  });
  const auto executor = cluster.executor();
  later.join();
  EXPECT_EQ(generate(*executor, prompt_of(4), 2, 64, greedy()).size(), 2U);
}

}  // namespace
}  // namespace weft
