// The engine's properties for every family, with stages of linear layers alone: many requests are one by one, and what goes on
// from a stored state is what a cold start gives (docs/engine.md).

#include <gtest/gtest.h>

#include "engine/engine.h"

#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {
namespace {

using namespace testing_support;

struct Case {
  std::string name;
  std::vector<int64_t> cuts;
};

std::string case_name(const testing::TestParamInfo<Case>& tested) {
  std::string name = fmt::format("{}_{}", tested.param.name, fmt::join(tested.param.cuts, "_"));
  std::ranges::replace(name, '-', '_');
  return name;
}

class Families : public testing::TestWithParam<Case> {
 protected:
  static EngineOptions options(bool keep) {
    EngineOptions made;
    made.max_context = 512;
    made.state_memory = ByteCount(64 << 20);
    made.keep_every = 16;
    made.prefill_chunk = 48;
    made.keep_states = keep;
    return made;
  }

  std::unique_ptr<LocalExecutor> whole = open_executor(fixture(GetParam().name));
  std::unique_ptr<LocalExecutor> stages = open_executor(fixture(GetParam().name), {.cuts = GetParam().cuts});
};

TEST_P(Families, ConcurrentRequestsAreOneAtATime) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 24; ++i) {
    requests.push_back(request_of(random_ids(1 + i * 37 % 90, static_cast<uint32_t>(i)), 6 + i % 5, i % 2 == 0 ? 0.0F : 0.9F,
                                  static_cast<uint64_t>(1000 + i)));
  }
  for (const bool keep : {false, true}) {
    Engine together(*stages, options(keep));
    std::vector<std::shared_ptr<Collector>> sinks;
    for (const GenerateRequest& request : requests) {
      sinks.push_back(std::make_shared<Collector>());
      static_cast<void>(together.submit(request, sinks.back()));
    }
    run_until_idle(together);
    for (size_t i = 0; i < requests.size(); ++i) {
      Engine alone(*whole, options(false));
      const auto wanted = answer(alone, requests[i]);
      ASSERT_FALSE(wanted->ids.empty());
      EXPECT_EQ(sinks[i]->ids, wanted->ids) << "request " << i;
      EXPECT_TRUE(same_bits(sinks[i]->logprobs, wanted->logprobs)) << "request " << i;
    }
  }
}

// A conversation that grows by its own answers, and one that leaves it in the middle.
TEST_P(Families, WarmIsCold) {
  Engine warm(*stages, options(true));
  std::vector<int32_t> prompt = random_ids(70, 5);
  int64_t reused = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const auto found = answer(warm, request_of(prompt, 9));
    Engine cold(*whole, options(false));
    const auto wanted = answer(cold, request_of(prompt, 9));
    EXPECT_EQ(found->ids, wanted->ids) << "turn " << turn;
    EXPECT_TRUE(same_bits(found->logprobs, wanted->logprobs)) << "turn " << turn;
    if (turn > 0) {
      EXPECT_GT(found->report->reused_tokens, 0) << "turn " << turn;
    }
    reused += found->report->reused_tokens;
    prompt.insert(prompt.end(), found->ids.begin(), found->ids.end());
    const std::vector<int32_t> more = random_ids(20, static_cast<uint32_t>(turn));
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (turn == 2) {
      prompt.resize(90);
      prompt.back() = (prompt.back() + 1) % 512;
    }
  }
  EXPECT_GT(reused, 150);
}

INSTANTIATE_TEST_SUITE_P(Models, Families,
                         testing::Values(Case{"tiny-qwen3-next-8l", {}}, Case{"tiny-qwen3-next-8l", {3, 4}},
                                         Case{"tiny-qwen3-next-tied-mlponly", {2}}, Case{"tiny-kimi-linear-hf", {1}}),
                         case_name);

}  // namespace
}  // namespace weft::engine_test
