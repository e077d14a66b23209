// The engine on token ids: many requests are one by one, limits, cancellation, failures (docs/engine.md).
#include "engine/engine.h"

#include <gmock/gmock.h>

#include "base/error.h"

#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;
using testing_support::fixture;
using testing_support::open_executor;

Executor& tiny() {
  static const std::unique_ptr<LocalExecutor> executor = open_executor(fixture("tiny-k3-8l"));
  return *executor;
}

EngineOptions options() {
  EngineOptions made;
  made.max_context = 512;
  made.state_memory = ByteCount(64 << 20);
  made.keep_every = 16;
  made.prefill_chunk = 48;
  return made;
}

EngineOptions without_store() {
  EngineOptions made = options();
  made.keep_states = false;
  return made;
}

ByteCount bytes_held(const Executor& executor) { return executor.state_memory().bytes(executor.states().held()); }

// Bytes of `sequences` sequences of `tokens` tokens each.
ByteCount memory_of(int64_t sequences, int64_t tokens) {
  const StateUse one = tiny().states().whole(TokenCount(tokens));
  return tiny().state_memory().bytes({sequences * one.slots, sequences * one.pages});
}

struct Answers {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> logprobs;
  int64_t preemptions = 0;
  int64_t most_running = 0;
};

// All at once; the memory limit is checked after every step.
Answers answer_together(Engine& engine, Executor& executor, const std::vector<GenerateRequest>& requests) {
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const GenerateRequest& request : requests) {
    sinks.push_back(std::make_shared<Collector>());
    static_cast<void>(engine.submit(request, sinks.back()));
  }
  Answers made;
  while (engine.step()) {
    EXPECT_LE(bytes_held(executor), engine.state_memory());
    made.most_running = std::max(made.most_running, engine.running());
  }
  EXPECT_TRUE(engine.idle());
  for (const auto& sink : sinks) {
    EXPECT_TRUE(sink->over());
    if (!sink->over()) continue;
    EXPECT_EQ(sink->report->end, RequestEnd::length) << (sink->report->failure ? sink->report->failure->message : "");
    EXPECT_EQ(sink->report->reused_tokens + sink->report->computed_tokens, sink->report->prompt_tokens);
    made.ids.push_back(sink->ids);
    made.logprobs.push_back(sink->logprobs);
    made.preemptions += sink->report->preemptions;
  }
  return made;
}

Answers answer_one_by_one(const std::vector<GenerateRequest>& requests) {
  Answers made;
  for (const GenerateRequest& request : requests) {
    Engine engine(tiny(), without_store());
    const auto sink = answer(engine, request);
    made.ids.push_back(sink->ids);
    made.logprobs.push_back(sink->logprobs);
  }
  return made;
}

void expect_equal(const Answers& found, const Answers& wanted) {
  ASSERT_EQ(found.ids.size(), wanted.ids.size());
  for (size_t i = 0; i < wanted.ids.size(); ++i) {
    EXPECT_EQ(found.ids[i], wanted.ids[i]) << "request " << i;
    EXPECT_TRUE(same_bits(found.logprobs[i], wanted.logprobs[i])) << "request " << i;
  }
}

std::vector<GenerateRequest> many(int64_t count, float temperature) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    requests.push_back(request_of(random_ids(1 + i * 37 % 90, static_cast<uint32_t>(i)), 6 + i % 9, temperature,
                                  static_cast<uint64_t>(1000 + i)));
  }
  return requests;
}

TEST(Engine, SixtyFourConcurrentRequestsAreOneAtATime) {
  for (const float temperature : {0.0F, 0.9F}) {
    const std::vector<GenerateRequest> requests = many(64, temperature);
    const Answers alone = answer_one_by_one(requests);
    for (const bool keep : {false, true}) {
      EngineOptions all = options();
      all.keep_states = keep;
      Engine engine(tiny(), all);
      const Answers together = answer_together(engine, tiny(), requests);
      EXPECT_EQ(together.most_running, 64);
      expect_equal(together, alone);
    }
  }
}

TEST(Engine, StagesOfAPipelineGiveTheSame) {
  const std::vector<GenerateRequest> requests = many(12, 0.9F);
  const Answers alone = answer_one_by_one(requests);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{4}, std::vector<int64_t>{2, 5}}) {
    const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = cuts});
    Engine engine(*executor, options());
    expect_equal(answer_together(engine, *executor, requests), alone);
  }
}

TEST(Engine, LittleMemoryMeansWaitingAndPreemption) {
  std::vector<GenerateRequest> requests = many(12, 0.9F);
  for (GenerateRequest& request : requests) request.max_tokens = 150;
  const Answers alone = answer_one_by_one(requests);
  for (const bool keep : {false, true}) {
    EngineOptions tight = options();
    tight.keep_states = keep;
    tight.state_memory = memory_of(4, 192);
    Engine engine(tiny(), tight);
    const Answers together = answer_together(engine, tiny(), requests);
    EXPECT_GT(together.most_running, 1);
    EXPECT_LT(together.most_running, 12);
    EXPECT_GT(together.preemptions, 0);
    expect_equal(together, alone);
  }
}

TEST(Engine, OneSequenceUsesAllOfTheMemory) {
  EngineOptions tight = options();
  tight.state_memory = memory_of(1, 128);
  Engine engine(tiny(), tight);
  EXPECT_EQ(engine.context_limit(), 128);
  const std::vector<GenerateRequest> requests = {request_of(random_ids(100, 1), 28), request_of(random_ids(120, 1), 8)};
  const Answers together = answer_together(engine, tiny(), requests);
  expect_equal(together, answer_one_by_one(requests));
  EXPECT_EQ(together.most_running, 1);
}

TEST(Engine, EveryPromptMovesOnInEveryStep) {
  Engine engine(tiny(), without_store());
  std::vector<std::shared_ptr<Collector>> sinks;
  for (uint32_t i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<Collector>());
    static_cast<void>(engine.submit(request_of(random_ids(100, i), 4), sinks.back()));
  }
  ASSERT_TRUE(engine.step());
  for (const auto& sink : sinks) EXPECT_EQ(sink->prompt_done, 12);  // 48 rows over 4 prompts
}

TEST(Engine, CancellationFreesMemoryInEveryPhase) {
  const std::vector<int64_t> steps = {0, 1, 2, 3, 5};  // queued, within the prompt, answering
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{}, std::vector<int64_t>{4}}) {
    const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = cuts});
    for (const int64_t count : steps) {
      Engine engine(*executor, without_store());
      const auto sink = std::make_shared<Collector>();
      const RequestId id = engine.submit(request_of(random_ids(100, 3), 50), sink);
      for (int64_t i = 0; i < count; ++i) engine.step();
      engine.cancel(id);
      EXPECT_EQ(sink->report.value().end, RequestEnd::cancelled);
      EXPECT_EQ(executor->states().held(), StateUse{}) << count;
      EXPECT_TRUE(engine.idle());
      engine.cancel(id);  // does nothing
      // A step may still be open; another request is not harmed by it.
      EXPECT_EQ(answer(engine, request_of(random_ids(40, 4), 5))->ids,
                answer_one_by_one({request_of(random_ids(40, 4), 5)}).ids[0]);
    }
  }
}

TEST(Engine, ARequestThatEndsFreesItsMemory) {
  Engine engine(tiny(), without_store());
  for (int i = 0; i < 20; ++i) {
    answer(engine, request_of(random_ids(70, 1), 3));
    EXPECT_EQ(tiny().states().held(), StateUse{});
  }
}

TEST(Engine, Limits) {
  EngineOptions limits = options();
  limits.max_queue = 2;
  Engine engine(tiny(), limits);
  const auto sink = std::make_shared<Collector>();
  const auto refused = [&](GenerateRequest request) {
    const std::optional<Failure> failure = guard([&] { static_cast<void>(engine.submit(std::move(request), sink)); });
    return failure ? failure->message : "no error";
  };
  EXPECT_THAT(refused(request_of({}, 1)), HasSubstr("at least one token"));
  EXPECT_THAT(refused(request_of({1, 2, 512}, 1)), HasSubstr("wanted ids in [0, 512), found 512"));
  EXPECT_THAT(refused(request_of({1, -1}, 1)), HasSubstr("found -1"));
  EXPECT_THAT(refused(request_of({1}, 0)), HasSubstr("max_tokens"));
  EXPECT_THAT(refused(request_of({1}, 1, -1.0F)), HasSubstr("temperature"));
  EXPECT_THAT(refused(request_of(random_ids(512, 1), 1)), HasSubstr("at most 511 tokens (a context of 512), found 512"));
  EXPECT_EQ(refused(request_of({1}, 1)), "no error");
  EXPECT_EQ(refused(request_of({1}, 1)), "no error");
  EXPECT_THAT(refused(request_of({1}, 1)), HasSubstr("2 requests waiting"));
  run_until_idle(engine);
  EXPECT_EQ(answer(engine, request_of(random_ids(510, 1), 100))->ids.size(), 2U);  // the context ends it
  EXPECT_THROW(Engine(tiny(), EngineOptions{}), Error);
  limits.state_memory = ByteCount(1000);
  EXPECT_THROW(Engine(tiny(), limits), Error);
}

TEST(Engine, TimeLimits) {
  EngineOptions limits = options();
  limits.queue_seconds = 0.0;
  Engine impatient(tiny(), limits);
  const auto waiting = answer(impatient, request_of({1, 2}, 3));
  EXPECT_EQ(waiting->report.value().end, RequestEnd::timeout);
  EXPECT_TRUE(waiting->ids.empty());
  limits.queue_seconds = 1e9;
  limits.request_seconds = 1e9;
  Engine patient(tiny(), limits);
  EXPECT_EQ(answer(patient, request_of({1, 2}, 3))->report.value().end, RequestEnd::length);
}

TEST(Engine, AFailedStepIsTheFaultOfOneRequest) {
  const std::vector<GenerateRequest> requests = many(5, 0.9F);
  const Answers alone = answer_one_by_one(requests);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{}, std::vector<int64_t>{4}}) {
    const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = cuts});
    Engine engine(*executor, options());
    std::vector<std::shared_ptr<Collector>> sinks;
    for (const GenerateRequest& request : requests) {
      sinks.push_back(std::make_shared<Collector>());
      static_cast<void>(engine.submit(request, sinks.back()));
    }
    sinks[2]->on_each = [&](int32_t) { sinks[2]->mask.assign(16, 0); };  // no id is allowed: the draw fails, and its step
    run_until_idle(engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      const RequestReport& report = sinks[i]->report.value();
      if (i == 2) {
        EXPECT_EQ(report.end, RequestEnd::failed);
        EXPECT_THAT(report.failure.value().message, HasSubstr("at least one allowed id"));
        continue;
      }
      EXPECT_EQ(report.end, RequestEnd::length);
      EXPECT_EQ(sinks[i]->ids, alone.ids[i]) << i;
      EXPECT_TRUE(same_bits(sinks[i]->logprobs, alone.logprobs[i])) << i;
    }
  }
}

TEST(Engine, ASinkThatThrowsFailsItsRequestOnly) {
  Engine engine(tiny(), options());
  const auto bad = std::make_shared<Collector>();
  bad->on_each = [](int32_t) { fail(ErrorKind::unavailable, "test", "the reader is gone"); };
  static_cast<void>(engine.submit(request_of(random_ids(20, 1), 5), bad));
  const auto good = answer(engine, request_of(random_ids(20, 2), 5));
  EXPECT_EQ(bad->report.value().end, RequestEnd::failed);
  EXPECT_THAT(bad->report->failure.value().message, HasSubstr("the reader is gone"));
  EXPECT_EQ(good->report.value().end, RequestEnd::length);
}

TEST(Engine, ARequestRestsWhileItsSinkHasNoRoom) {
  Engine engine(tiny(), options());
  const auto sink = std::make_shared<Collector>();
  sink->on_each = [&](int32_t) { sink->open = sink->ids.size() % 2 != 0; };
  static_cast<void>(engine.submit(request_of(random_ids(20, 1), 5), sink));
  run_until_idle(engine);
  EXPECT_EQ(sink->ids.size(), 2U);
  EXPECT_FALSE(engine.idle());
  EXPECT_EQ(answer(engine, request_of(random_ids(20, 2), 5))->ids.size(), 5U);  // others go on
  while (!sink->over()) {
    sink->open = true;
    run_until_idle(engine);
  }
  EXPECT_EQ(sink->ids, answer_one_by_one({request_of(random_ids(20, 1), 5)}).ids[0]);
}

TEST(Engine, ASinkEndsItsRequest) {
  Engine engine(tiny(), options());
  const std::vector<int32_t> free = answer(engine, request_of(random_ids(20, 1), 8))->ids;
  const auto sink = std::make_shared<Collector>();
  sink->stop_id = free[3];
  static_cast<void>(engine.submit(request_of(random_ids(20, 1), 8), sink));
  run_until_idle(engine);
  EXPECT_EQ(sink->report.value().end, RequestEnd::stop);
  EXPECT_EQ(sink->ids.back(), free[3]);
  EXPECT_LE(sink->ids.size(), 4U);
}

}  // namespace
}  // namespace weft::engine_test
