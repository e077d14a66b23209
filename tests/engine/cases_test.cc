// Faults that users of other engines met (cases C1 to C18 of the project's list): stored states are filed under what they have
// consumed, are really written, belong to one conversation, and survive a restart.
#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/answer_json.h"
#include "engine/chat_session.h"

#include "cold_and_warm.h"
#include "engine_fixture.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;

TEST(Cases, C1APromptOfWholeIntervalsIsReused) {
  const std::vector<std::pair<int64_t, int64_t>> grid = {{15, 0}, {16, 0}, {17, 16}, {31, 16}, {32, 16}, {33, 32}};
  for (const bool prompt_end : {false, true}) {
    for (const auto& [length, hit] : grid) {
      EngineOptions kept = grid_options();
      kept.keep_prompt_end = prompt_end;
      Served served(kept);
      const std::vector<int32_t> prompt = random_ids(length, 11);
      EXPECT_EQ(ask_ids(served, prompt, 1).report.reused_tokens, 0);
      const Answer again = ask_ids(served, prompt, 1);
      // With the state before the last token too, any length is reused up to there.
      EXPECT_EQ(again.report.reused_tokens, prompt_end ? length - 1 : hit) << length;
      expect_cold(again, prompt, std::to_string(length));
    }
  }
}

TEST(Cases, C2ChunksOffTheGridFileNoStateUnderAnotherCount) {
  for (const int64_t chunk : {5, 7, 16, 23}) {
    EngineOptions chunked = grid_options();
    chunked.prefill_chunk = chunk;
    Served served(chunked);
    const std::vector<int32_t> prompt = random_ids(40, 3);
    expect_cold(ask_ids(served, prompt), prompt, "first");
    const std::vector<int32_t> longer = extended(prompt, 25, 4);
    const Answer warm = ask_ids(served, longer);
    EXPECT_EQ(warm.report.reused_tokens, 32) << chunk;
    expect_cold(warm, longer, fmt::format("chunk {}", chunk));
  }
}

TEST(Cases, C4WarmIsCold) {
  Served served(grid_options());
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 20; ++i) prompts.push_back(random_ids(10 + 7 * i, 100 + i));
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Answer found = ask_ids(served, prompts[i]);
      EXPECT_EQ(found.report.reused_tokens > 0, round == 1 && prompts[i].size() > kInterval) << i;
      expect_cold(found, prompts[i], fmt::format("round {}, prompt {}", round, i));
    }
  }
}

TEST(Cases, C6AnEditInTheMiddleCostsTheRestAndOneInterval) {
  Served served(grid_options());
  std::vector<int32_t> prompt = random_ids(400, 6);
  static_cast<void>(ask_ids(served, prompt));
  prompt[300] = (prompt[300] + 1) % 512;
  const Answer edited = ask_ids(served, prompt);
  EXPECT_LE(edited.report.computed_tokens, 100 + kInterval);
  EXPECT_EQ(edited.report.reused_tokens, 288);
  expect_cold(edited, prompt, "edited");
}

TEST(Cases, C7AHitAndACounterInTheResponse) {
  Engine engine(mini().executor(), engine_options());
  AnswerOptions once = greedy();
  once.turn.max_tokens = 8;
  for (int i = 0; i < 2; ++i) {
    ChatSession session(mini(), engine, ask("Hello"));
    const TurnResult result = session.answer(once);
    const Json json = result_json(mini(), result);
    const auto cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
    EXPECT_EQ(cached, i == 0 ? 0 : json["usage"]["prompt_tokens"].get<int64_t>() - 1);
    EXPECT_EQ(json["weft"]["tokens_reused"], cached);
    EXPECT_EQ(json["weft"]["tokens_reused_from"], i == 0 ? "nothing" : "memory");
  }
}

TEST(Cases, C18AStateOutlivesTheProcess) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = random_ids(100, 18);
  {
    Served first(in_folder(folder));
    static_cast<void>(ask_ids(first, prompt));
  }
  const std::vector<int32_t> longer = extended(prompt, 1, 19);
  {
    Served second(in_folder(folder), {3});  // another stage split
    const Answer warm = ask_ids(second, longer);
    EXPECT_EQ(warm.report.computed_tokens, 1 + 100 % kInterval);
    EXPECT_EQ(warm.report.reused_from, ReusedFrom::disk);
    expect_cold(warm, longer, "restarted");
  }
  // A file of another model is refused and stays where it is.
  const auto other = open_executor(fixture("tiny-kimi-linear"));
  const Engine engine(*other, in_folder(folder));
  EXPECT_EQ(engine.store().on_disk(), 0);
  ASSERT_FALSE(engine.store().notes().empty());
  EXPECT_THAT(engine.store().notes().front(), HasSubstr("wanted the state of"));
}

TEST(Cases, C18OneTokenIsComputedBehindTheEndOfATurn) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = random_ids(100, 18);
  {
    Served first(in_folder(folder));
    static_cast<void>(ask_ids(first, prompt, 1));  // its state at the end has consumed the 100
  }
  Served second(in_folder(folder));
  const std::vector<int32_t> longer = extended(prompt, 1, 19);
  const Answer warm = ask_ids(second, longer);
  EXPECT_EQ(warm.report.computed_tokens, 1);
  EXPECT_EQ(warm.report.reused_from, ReusedFrom::disk);
  expect_cold(warm, longer, "restarted");
}

}  // namespace
}  // namespace weft::engine_test
