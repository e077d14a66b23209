// The engine over stages elsewhere: nothing of it knows where they run.
#include "engine/engine.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "remote/in_process_cluster.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
using namespace testing_support;
using testing::HasSubstr;

class Collect final : public TokenSink {
 public:
  bool on_token(const ops::Sampled& token) override {
    ids.push_back(token.id);
    return false;
  }
  void on_end(const RequestReport& report) override {
    ++ends;
    end = report.end;
    failure = report.failure;
  }

  std::vector<int32_t> ids;
  int ends = 0;
  RequestEnd end = RequestEnd::failed;
  std::optional<Failure> failure;
};

GenerateRequest request_of(int i, int64_t tokens) {
  GenerateRequest request;
  for (int j = 0; j < 3 + 5 * i; ++j) request.ids.push_back(static_cast<int32_t>((j * 13 + i * 7) % 90));
  request.max_tokens = tokens;
  request.sampling.temperature = 0.9F;
  request.sampling.seed = static_cast<uint64_t>(i);
  return request;
}

EngineOptions options_of() {
  EngineOptions options;
  options.max_context = 256;
  options.prefill_chunk = 16;
  options.state_memory = ByteCount(64 << 20);
  return options;
}

std::vector<std::vector<int32_t>> answers(Executor& executor, int count, const EngineOptions& options = options_of()) {
  Engine engine(executor, options);
  std::vector<std::shared_ptr<Collect>> sinks;
  for (int i = 0; i < count; ++i) {
    sinks.push_back(std::make_shared<Collect>());
    static_cast<void>(engine.submit(request_of(i, 12), sinks.back()));
  }
  while (engine.step()) {
  }
  std::vector<std::vector<int32_t>> ids;
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->ends, 1);
    EXPECT_FALSE(sink->failure) << sink->failure->message;
    ids.push_back(sink->ids);
  }
  return ids;
}

TEST(RemoteEngine, AnswersAreThoseOfOneProcess) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7"});
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  const auto wanted = answers(*local, 9);
  EXPECT_EQ(answers(*remote, 9), wanted);
  EXPECT_EQ(answers(*remote, 4), std::vector(wanted.begin(), wanted.begin() + 4));
  EXPECT_EQ(answers(*remote, 1), std::vector(wanted.begin(), wanted.begin() + 1));
  EXPECT_EQ(remote->states().held().slots, 0);
}

// Schedules and sizes of steps change no answer.
TEST(RemoteEngine, SchedulesChangeNoAnswer) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  const auto remote = cluster.executor();
  const auto wanted = answers(*remote, 5);
  for (const bool by_round : {false, true}) {
    for (const int64_t micro_batch : {1, 3}) {
      EngineOptions options = options_of();
      options.by_round = by_round;
      options.micro_batch = micro_batch;
      options.max_in_flight = 2;
      EXPECT_EQ(answers(*remote, 5, options), wanted);
    }
  }
}

// F8: a client that leaves: its sequences are gone from all stages.
TEST(RemoteEngine, F8ACancelledRequestFreesTheStages) {
  InProcessCluster cluster({.dir = fixture("tiny-k3-8l"), .layers = "0-3,4-7"});
  const auto remote = cluster.executor();
  {
    EngineOptions options = options_of();
    options.keep_states = false;
    Engine engine(*remote, options);
    const auto sink = std::make_shared<Collect>();
    const RequestId id = engine.submit(request_of(2, 200), sink);
    while (sink->ids.size() < 5 && engine.step()) {
    }
    engine.cancel(id);
    EXPECT_EQ(sink->ends, 1);
    EXPECT_EQ(sink->end, RequestEnd::cancelled);
    while (engine.step()) {
    }
    EXPECT_EQ(remote->states().held().slots, 0);
  }
  static_cast<void>(logits_of(*remote, std::vector<int32_t>{1, 2}, 64));
  for (const Json& stage : remote->stage_report()) EXPECT_LE(stage.at("sequences").get<int64_t>(), 1);
}

// A stage dies under load: every request ends once with its name, the engine lives, and what comes later is answered.
TEST(RemoteEngine, EveryRequestEndsOnceWhenAStageDies) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7"};
  setup.timeouts.heartbeat_interval = 0.1;
  InProcessCluster cluster(setup);
  const auto remote = cluster.executor();
  const auto local = open_executor(fixture("tiny-k3-8l"));
  const auto wanted = answers(*local, 2);
  Engine engine(*remote, options_of());
  std::vector<std::shared_ptr<Collect>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<Collect>());
    static_cast<void>(engine.submit(request_of(i, 150), sinks.back()));
  }
  while (sinks[0]->ids.size() < 3 && engine.step()) {
  }
  cluster.kill(1);
  while (engine.step()) {
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->ends, 1);
    ASSERT_TRUE(sink->failure);
    EXPECT_EQ(sink->failure->kind, ErrorKind::stage_lost) << sink->failure->message;
    EXPECT_THAT(sink->failure->message, HasSubstr("(node stage-"));
  }
  // While it is away, requests end at once with the reason.
  const auto refused = std::make_shared<Collect>();
  static_cast<void>(engine.submit(request_of(0, 3), refused));
  while (engine.step()) {
  }
  EXPECT_EQ(refused->ends, 1);
  ASSERT_TRUE(refused->failure);
  EXPECT_EQ(refused->failure->kind, ErrorKind::stage_lost);
  cluster.start(1);
  for (int i = 0; i < 1000 && !remote->ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // Stored prefixes of the epoch that is gone are not used.
  for (int i = 0; i < 2; ++i) {
    const auto sink = std::make_shared<Collect>();
    static_cast<void>(engine.submit(request_of(i, 12), sink));
    while (engine.step()) {
    }
    EXPECT_FALSE(sink->failure) << sink->failure->message;
    EXPECT_EQ(sink->ids, wanted[static_cast<size_t>(i)]);
  }
}

}  // namespace
}  // namespace weft
