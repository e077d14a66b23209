// --pp-sample-at: tokens that the coordinator draws are those that the last stage draws, to the bit.
#include <bit>
#include <future>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/remote/coordinator_sampler.h"
#include "pipeline/remote/messages.h"

#include "remote/in_process_cluster.h"
#include "remote/tamper.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
using namespace testing_support;
using testing::HasSubstr;

ClusterSetup setup_of(SampleAt where, ops::Profile profile = ops::Profile::exact) {
  ClusterSetup setup{.dir = fixture("tiny-k3-8l"), .layers = "0-2,3-5,6-7", .profile = profile};
  setup.change_coordinator = [where](RemoteOptions& options) {
    options.sample_at = where;
    options.sample_threads = 3;
  };
  return setup;
}

// Ids that a draw may give, as a grammar says it: beside the step, or before it.
std::vector<uint32_t> mask_of(int64_t vocab, int32_t modulus) {
  std::vector<uint32_t> words(static_cast<size_t>((vocab + 31) / 32));
  for (int32_t id = 0; id < vocab; id += modulus) words[static_cast<size_t>(id / 32)] |= 1U << static_cast<uint32_t>(id % 32);
  return words;
}

// Of sequence i: greedy, plain, with all that changes the draw, and under a grammar.
SampleRequest request_of(size_t i, const std::vector<int32_t>& prompt, const std::vector<int32_t>& drawn, int64_t vocab) {
  SampleRequest request;
  request.params.temperature = i == 0 ? 0.0F : 0.9F;
  request.params.seed = i;
  request.prompt = prompt;
  request.history = drawn;
  request.top = static_cast<int64_t>(i);
  if (i >= 2) {
    request.params.top_k = 40;
    request.params.top_p = 0.95F;
    request.params.min_p = 0.01F;
    request.params.repetition_penalty = 1.2F;
    request.params.frequency_penalty = 0.5F;
    request.params.presence_penalty = 0.25F;
    request.bias = {{3, 2.5F}, {17, -100.0F}};
    request.never_penalised = {5};
  }
  if (i == 1) request.allowed = mask_of(vocab, 2);
  if (i == 3) request.mask = std::async(std::launch::async, [vocab] { return mask_of(vocab, 3); }).share();
  return request;
}

using Bits = std::tuple<int32_t, uint32_t>;  // id, log probability

struct Outcome {
  std::vector<Bits> drawn;
  std::vector<std::vector<Bits>> top;
  std::vector<std::vector<float>> logits;

  bool operator==(const Outcome&) const = default;
};

Bits bits_of(const ops::Sampled& sampled) { return {sampled.id, std::bit_cast<uint32_t>(sampled.logprob)}; }

// Sequences `which` of four, in steps together: prefill in two chunks, of which the last draws, then five tokens.
std::map<size_t, Outcome> run(Executor& executor, const std::vector<size_t>& which) {
  struct Going {
    SequenceId sequence;
    std::vector<int32_t> prompt;
    std::vector<int32_t> drawn;
  };
  std::map<size_t, Going> going;
  for (const size_t i : which) {
    Going& made = going[i];
    made.sequence = executor.create();
    for (int32_t at = 0; at < static_cast<int32_t>(7 + 5 * i); ++at) made.prompt.push_back((at * 37 + 11) % 101);
  }
  std::map<size_t, Outcome> outcomes;
  for (int64_t at = -1; at < 6; ++at) {
    Step step;
    for (const size_t i : which) {
      Going& one = going[i];
      Rows& rows = step.rows.emplace_back();
      rows.sequence = one.sequence;
      if (at == -1) rows.ids = {one.prompt.begin(), one.prompt.begin() + 4};
      if (at == 0) rows.ids = {one.prompt.begin() + 4, one.prompt.end()};
      if (at > 0) rows.ids = {one.drawn.back()};
      rows.logits = static_cast<Rows::Logits>(i % 3);
      if (at >= 0) rows.sample = request_of(i, one.prompt, one.drawn, executor.vocab_size());
    }
    const std::vector<RowsResult> results = executor.run(std::move(step));
    for (size_t r = 0; r < which.size(); ++r) {
      const RowsResult& result = results[r];
      Outcome& outcome = outcomes[which[r]];
      const std::span<const float> logits = result.logits.as<float>();
      outcome.logits.emplace_back(logits.begin(), logits.end());
      if (at < 0) continue;
      going[which[r]].drawn.push_back(result.sampled.value().id);
      outcome.drawn.push_back(bits_of(*result.sampled));
      std::vector<Bits>& top = outcome.top.emplace_back();
      for (const ops::Sampled& entry : result.top) top.push_back(bits_of(entry));
    }
  }
  for (const auto& [i, one] : going) executor.release(one.sequence);
  return outcomes;
}

class SampleAtBits : public testing::TestWithParam<ops::Profile> {};

TEST_P(SampleAtBits, TheCoordinatorDrawsWhatTheLastStageDraws) {
  InProcessCluster there(setup_of(SampleAt::last_stage, GetParam()));
  InProcessCluster here(setup_of(SampleAt::coordinator, GetParam()));
  const auto last_stage = there.executor();
  const auto coordinator = here.executor();
  const std::map<size_t, Outcome> wanted = run(*last_stage, {0, 1, 2, 3});
  EXPECT_TRUE(run(*coordinator, {0, 1, 2, 3}) == wanted);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(run(*coordinator, {i}).at(i) == wanted.at(i)) << i;
  // The test's own: there is something to be equal.
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(wanted.at(i).drawn.size(), 6U);
    for (const std::vector<Bits>& top : wanted.at(i).top) EXPECT_EQ(top.size(), i);
    EXPECT_EQ(wanted.at(i).logits.back().empty(), i % 3 == 0);
  }
  for (const auto& [id, logprob] : wanted.at(3).drawn) EXPECT_EQ(id % 3, 0);
}

INSTANTIATE_TEST_SUITE_P(Profiles, SampleAtBits, testing::Values(ops::Profile::exact, ops::Profile::bf16));

TEST(SampleAt, NoStageIsToldHowToDraw) {
  std::atomic<int> told = 0;
  std::atomic<int> steps = 0;
  for (const SampleAt where : {SampleAt::last_stage, SampleAt::coordinator}) {
    ClusterSetup setup = setup_of(where);
    setup.tamper = [&](std::unique_ptr<MessageStream> stream, const std::string&) -> std::unique_ptr<MessageStream> {
      return std::make_unique<TamperStream>(std::move(stream), setup.link.limits, [&](Frame& frame) {
        if (frame.type != FrameType::step) return true;
        const auto decision = message_of<wire::Decision>(frame);
        if (!decision.has_step()) return true;
        ++steps;
        for (const wire::Rows& rows : decision.step().rows()) told += rows.has_sample() ? 1 : 0;
        return true;
      });
    };
    told = steps = 0;
    InProcessCluster cluster(setup);
    static_cast<void>(run(*cluster.executor(), {0, 1}));
    EXPECT_EQ(steps, 3 * 7);
    EXPECT_EQ(told, where == SampleAt::last_stage ? 2 * 6 : 0);
  }
}

// A draw that fails is the failure of its step; other sequences go on.
TEST(SampleAt, ADrawThatFailsFailsItsStep) {
  for (const SampleAt where : {SampleAt::last_stage, SampleAt::coordinator}) {
    InProcessCluster cluster(setup_of(where));
    const auto executor = cluster.executor();
    const SequenceId broken = executor->create();
    const auto draw = [&](const std::function<void(Rows&)>& change) {
      return guard([&] {
        Step step;
        Rows& rows = step.rows.emplace_back();
        rows.sequence = broken;
        rows.ids = {1, 2, 3};
        rows.sample = SampleRequest{};
        rows.checkpoints = {2};
        change(rows);
        for (const RowsResult& result : executor->run(std::move(step))) executor->release(result.checkpoints.front());
      });
    };
    EXPECT_FALSE(draw([](Rows&) {}));
    const auto none = draw([&](Rows& rows) { rows.sample->allowed.resize(mask_of(executor->vocab_size(), 1).size()); });
    ASSERT_TRUE(none.has_value());
    EXPECT_THAT(none->message, HasSubstr("allowed"));
    const auto after = draw([](Rows&) {});
    ASSERT_TRUE(after.has_value());
    EXPECT_EQ(after->kind, ErrorKind::unavailable) << after->message;
    executor->release(broken);
    EXPECT_EQ(executor->states().held().slots, 0);
    EXPECT_TRUE(executor->ready());
    EXPECT_EQ(run(*executor, {2}).at(2).drawn.size(), 6U);
  }
}

TEST(SampleAt, RequestsAndLogitsAreLookedAt) {
  CoordinatorSampler sampler(ops::Backend::cpu, 1, 8);
  const auto refusal = [&](const std::function<void(Rows&)>& change, const Shape& shape = {1, 8}) {
    StageStep step;
    Rows& rows = step.step.rows.emplace_back();
    rows.sequence = SequenceId(4);
    rows.ids = {1, 2};
    rows.sample = SampleRequest{};
    change(rows);
    step.checkpoint_ids.resize(1);
    std::vector<RowsResult> results(1);
    results.front().logits = Tensor::zeros(DType::f32, shape);
    const std::optional<Failure> failure = guard([&] { sampler.draw(step, std::vector<int64_t>{0}, results); });
    return failure ? failure->message : "drawn";
  };
  EXPECT_EQ(refusal([](Rows&) {}), "drawn");
  EXPECT_EQ(refusal([](Rows& rows) { rows.logits = Rows::Logits::all; }, {2, 8}), "drawn");
  EXPECT_THAT(refusal([](Rows&) {}, {1, 7}), HasSubstr("sequence 4: wanted logits F32 [1, 8] to draw from, found F32 [1, 7]"));
  EXPECT_THAT(refusal([](Rows&) {}, {0}), HasSubstr("found F32 [0]"));
  EXPECT_THAT(refusal([](Rows& rows) { rows.logits = Rows::Logits::all; }), HasSubstr("wanted logits F32 [2, 8]"));
  EXPECT_THAT(refusal([](Rows& rows) { rows.sample->top = 9; }), HasSubstr("top: wanted a number in [0, 8], found 9"));
  EXPECT_THAT(refusal([](Rows& rows) { rows.sample->allowed.resize(2); }), HasSubstr("wanted"));
  EXPECT_THAT(guard([] { CoordinatorSampler(ops::Backend::cuda, 1, 8); }).value().message, HasSubstr("found cuda"));
}

}  // namespace
}  // namespace weft
