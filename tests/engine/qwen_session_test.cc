// Conversations in ChatML. The numbers come from k3-mini, whose ids mean nothing to this tokenizer: what it writes is noise,
// which is as good a test of the frame around it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "executors.h"
#include "grammar_fixture.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;

struct Qwen {
  explicit Qwen(bool thinking)
      : executor(new LoggingExecutor(mini().executor())),
        model(make_qwen_format(thinking), std::unique_ptr<Executor>(executor), mini().max_context(), {}),
        engine(model.executor(), engine_options()) {}

  [[nodiscard]] std::string text(const std::vector<TokenId>& ids) const {
    return model.format().tokenizer().decode(ids, ControlText::all);
  }

  LoggingExecutor* executor;  // the model's
  Model model;
  Engine engine;
};

AnswerOptions short_answer(int64_t tokens = 6) {
  AnswerOptions options = greedy();
  options.turn.max_tokens = tokens;
  return options;
}

ChatRequest rest_of(ChatRequest request, const ChatSession& session) {
  request.messages = session.messages();
  request.add_generation_prompt = false;
  return request;
}

TEST(QwenSession, InstructFeedsEachTokenOnce) {
  Qwen qwen(false);
  const ChatRequest request = ask("Hello");
  ChatSession session(qwen.model, qwen.engine, request);
  int64_t reused = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const TurnResult result = session.answer(short_answer());
    EXPECT_FALSE(result.thinking);
    EXPECT_EQ(result.statistics.reused_tokens, reused);
    reused = result.statistics.prompt_tokens + result.statistics.generated_tokens - 1;
    EXPECT_THAT(qwen.text(session.ids()), testing::EndsWith("<|im_end|>\n"));
    session.add_user("Go on");
  }
  EXPECT_GT(reused, 20);
}

TEST(QwenSession, ThinkingDropsOldReasoningAndReadsTheHistoryAnew) {
  Qwen qwen(true);
  const ChatRequest request = ask("Hello");
  ChatSession session(qwen.model, qwen.engine, request);
  const TurnResult first = session.answer(short_answer());
  EXPECT_TRUE(first.thinking);
  EXPECT_FALSE(first.answer.reasoning.empty());
  EXPECT_THAT(qwen.text(session.ids()), testing::EndsWith("</think>\n\n<|im_end|>\n"));
  session.add_user("Go on");
  ChatRequest whole = rest_of(request, session);
  whole.add_generation_prompt = true;
  const std::vector<TokenId> wanted = qwen.model.format().render(whole).ids;
  const TurnResult second = session.answer(short_answer());
  EXPECT_EQ(second.statistics.prompt_tokens, static_cast<int64_t>(wanted.size()));
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), session.ids().begin()));
  EXPECT_THAT(qwen.text(wanted), HasSubstr("<|im_start|>assistant\n<|im_end|>\n"));
}

// Inside a tool loop the reasoning stays, and nothing is computed twice.
TEST(QwenSession, AToolLoopGoesOnFromTheState) {
  Qwen qwen(true);
  ChatRequest request = request_with(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters":
    {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}}], "tool_choice": "required")");
  ChatSession session(qwen.model, qwen.engine, request);
  const TurnResult call = session.answer(short_answer(60));
  // Random weights think until the limit makes them call.
  ASSERT_EQ(call.answer.finish_reason, FinishReason::length) << qwen.text(session.ids());
  ASSERT_EQ(call.answer.tool_calls.size(), 1U);
  EXPECT_EQ(call.answer.tool_calls[0].name, "f");
  EXPECT_FALSE(call.answer.reasoning.empty());
  ChatMessage message;
  message.role = Role::tool;
  message.content = {"ok"};
  session.add(message);
  const std::string before = qwen.text(session.ids());
  const TurnResult next = session.answer(short_answer(60));
  EXPECT_THAT(
      qwen.text(session.ids()),
      testing::StartsWith(
          before + "<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"));
  EXPECT_EQ(next.statistics.reused_tokens, call.statistics.prompt_tokens + call.statistics.generated_tokens - 1);
}

TEST(QwenSession, ASchemaIsHeldTo) {
  for (const bool thinking : {false, true}) {
    Qwen qwen(thinking);
    ChatSession session(qwen.model, qwen.engine,
                        request_with(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s",
      "schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["a"]}}})"));
    const TurnResult result = session.answer(short_answer(40));
    EXPECT_EQ(result.end, RequestEnd::stop);
    const JsonValue value = parse_json_value(result.answer.content, "answer");
    ASSERT_NE(value.find("a"), nullptr);
    EXPECT_EQ(value.find("a")->text.size(), 1U);
  }
}

// 7.2
TEST(QwenModel, ValidIdsAreThoseOfTheTokenizer) {
  const Qwen qwen(true);
  const Tokenizer& tokenizer = qwen.model.format().tokenizer();
  for (TokenId id = 0; id < qwen.model.executor().vocab_size(); ++id) {
    const bool valid = (qwen.model.valid_ids()[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0;
    EXPECT_EQ(valid, id < tokenizer.vocab_size()) << id;
  }
  EXPECT_EQ(qwen.model.control_ids().size(), text_test::qwen_added().size());
}

}  // namespace
}  // namespace weft::engine_test
