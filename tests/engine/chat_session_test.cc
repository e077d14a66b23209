// Conversations with k3-mini: nothing is computed twice, and warm is cold.
#include <gmock/gmock.h>

#include "engine/answer_all.h"
#include "engine/next_logits.h"

#include "engine_fixture.h"
#include "executors.h"

namespace weft::engine_test {
namespace {

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city.",
         "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                        "required": ["city"]}}}])";

struct Logged {
  explicit Logged(const EngineOptions& options = engine_options())
      : executor(new LoggingExecutor(mini().executor())),
        model(ChatFormat::load(mini_dir()), std::unique_ptr<Executor>(executor), mini().max_context(), {}),
        engine(model.executor(), options) {}

  LoggingExecutor* executor;  // the model's
  Model model;
  Engine engine;
};

// What is fed of a conversation: all but the ids behind the last answer's last drawn one.
std::vector<TokenId> beginning(const std::vector<TokenId>& ids, size_t count) {
  return {ids.begin(), ids.begin() + static_cast<int64_t>(std::min(count, ids.size()))};
}

EngineOptions chunks_of(int64_t chunk) {
  EngineOptions options = engine_options();
  options.prefill_chunk = chunk;
  return options;
}

// The session's last answer against the same request from an empty sequence: ids and the logits behind each, bit for bit.
void expect_equal_to_cold(const Logged& warm, size_t logits_before, const TurnResult& result, ChatRequest request,
                          const std::vector<ChatMessage>& messages) {
  request.messages.assign(messages.begin(), messages.end() - 1);
  Logged cold;
  ChatSession session(cold.model, cold.engine, request);
  const TurnResult again = session.answer(greedy());
  EXPECT_EQ(again.ids, result.ids);
  EXPECT_EQ(again.statistics.prompt_tokens, result.statistics.prompt_tokens);
  ASSERT_EQ(cold.executor->logits.size(), warm.executor->logits.size() - logits_before);
  for (size_t i = 0; i < cold.executor->logits.size(); ++i) {
    EXPECT_EQ(cold.executor->logits[i], warm.executor->logits[logits_before + i]) << "draw " << i;
  }
}

TEST(ChatSession, ThreeTurnsFeedEachTokenOnce) {
  Logged logged;
  const ChatRequest request = ask("What is the capital of Chile?");
  ChatSession session(logged.model, logged.engine, request);
  int64_t reused = 0;
  for (const char* next : {"What is the capital of Austria?", "What is 12 * 12? Answer with the number only.", ""}) {
    const size_t logits_before = logged.executor->logits.size();
    const TurnResult result = session.answer(greedy());
    EXPECT_EQ(result.end, RequestEnd::stop);
    EXPECT_EQ(result.statistics.reused_tokens, reused);
    reused = result.statistics.prompt_tokens + result.statistics.generated_tokens - 1;
    // What was fed is the conversation, each token once.
    EXPECT_EQ(static_cast<int64_t>(logged.executor->fed.size()), reused);
    EXPECT_EQ(logged.executor->fed, beginning(session.ids(), logged.executor->fed.size()));
    // With what waits, it is the whole history rendered anew.
    EXPECT_EQ(session.ids(), rendered_anew(request, session.messages()).ids);
    expect_equal_to_cold(logged, logits_before, result, request, session.messages());
    if (*next != 0) session.add_user(next);
  }
  ASSERT_EQ(session.messages().size(), 6U);
  EXPECT_EQ(session.messages()[1].content.front(), "The capital of Chile is Santiago.");
}

TEST(ChatSession, ToolResultsContinueTheTurn) {
  Logged logged;
  ChatRequest request = ask("What is the weather in Tokyo?");
  request.tools = parse_json_value(kTools, "tools");
  ChatSession session(logged.model, logged.engine, request);
  const TurnResult call = session.answer(greedy());
  EXPECT_EQ(call.answer.finish_reason, FinishReason::tool_calls);
  ASSERT_EQ(call.answer.tool_calls.size(), 1U);
  EXPECT_EQ(call.answer.tool_calls[0].name, "get_weather");
  EXPECT_EQ(call.answer.tool_calls[0].arguments, R"({"city": "Tokyo"})");

  ChatMessage message;
  message.role = Role::tool;
  message.tool_call_id = call.answer.tool_calls[0].id;
  message.content = {R"({"condition": "sunny", "temperature": 4})"};
  session.add(message);
  const size_t logits_before = logged.executor->logits.size();
  const TurnResult answer = session.answer(greedy());
  EXPECT_EQ(answer.end, RequestEnd::stop);
  EXPECT_THAT(text_of(session.ids()),
              ::testing::HasSubstr("<|open|>message role=\"tool\" tool=\"get_weather\" index=\"1\"<|sep|>"));
  EXPECT_EQ(session.ids(), rendered_anew(request, session.messages()).ids);
  expect_equal_to_cold(logged, logits_before, answer, request, session.messages());
}

TEST(ChatSession, AnAnswerCutByLengthStaysInTheConversation) {
  Logged logged;
  const ChatRequest request = ask("What is the capital of Chile?");
  ChatSession session(logged.model, logged.engine, request);
  AnswerOptions options = greedy();
  options.turn.max_tokens = 5;
  const TurnResult cut = session.answer(options);
  EXPECT_EQ(cut.answer.finish_reason, FinishReason::length);
  EXPECT_FALSE(cut.answer.reasoning.empty());
  session.add_user("Hello");
  const TurnResult result = session.answer(greedy());
  EXPECT_EQ(result.end, RequestEnd::stop);
  EXPECT_EQ(text_of(session.ids()), joined(rendered_anew(request, session.messages()).segments));
  EXPECT_EQ(logged.executor->fed, beginning(session.ids(), logged.executor->fed.size()));
}

TEST(ChatSession, CancelledWithinThePromptStopsAtTheOpenSteps) {
  Logged logged(chunks_of(10));
  ChatSession session(logged.model, logged.engine, ask("What is the capital of Chile?"));
  std::atomic<bool> cancelled = false;
  AnswerOptions options = greedy();
  options.cancelled = &cancelled;
  options.on_prompt = [&](int64_t, int64_t) { cancelled = true; };
  const TurnResult cut = session.answer(options);
  EXPECT_EQ(cut.end, RequestEnd::cancelled);
  EXPECT_EQ(logged.executor->steps, 1);
  EXPECT_EQ(cut.statistics.computed_tokens, 10);
  EXPECT_GT(cut.statistics.prompt_tokens, 10);
}

TEST(ChatSession, WhatIsRefusedCanBeTakenBack) {
  Logged logged;
  ChatSession session(logged.model, logged.engine, ask("What is the capital of Chile?"));
  session.answer(greedy());
  const std::vector<TokenId> ids = session.ids();
  std::string too_long;
  for (int i = 0; i < 5000; ++i) too_long += "hello ";
  session.add_user(too_long);
  EXPECT_THROW(session.answer(greedy()), Error);
  EXPECT_EQ(session.ids(), ids);
  session.take_back(2);
  EXPECT_THROW(session.take_back(1), Error) << "an answered message";
  session.add_user("Hello");
  EXPECT_EQ(session.answer(greedy()).end, RequestEnd::stop);
}

TEST(ChatSession, SampledIdsDoNotDependOnChunks) {
  AnswerOptions options = greedy();
  options.turn.sampling.temperature = 1.8F;
  options.turn.sampling.seed = 7;
  options.turn.max_tokens = 24;
  std::vector<TokenId> expected;
  for (const int64_t chunk : {512, 1, 7, 64}) {
    Engine engine(mini().executor(), chunks_of(chunk));
    ChatSession session(mini(), engine, ask("Write a Python function that reverses a string."));
    const std::vector<TokenId> ids = session.answer(options).ids;
    if (expected.empty()) expected = ids;
    EXPECT_EQ(ids, expected) << "chunk " << chunk;
  }
  options.turn.sampling.seed = 8;
  Engine engine(mini().executor(), engine_options());
  ChatSession other(mini(), engine, ask("Write a Python function that reverses a string."));
  EXPECT_NE(other.answer(options).ids, expected);
}

TEST(AnswerAll, SideBySideIsOneByOne) {
  std::vector<ChatPrompt> prompts;
  for (const char* text : {"What is 17 * 23? Answer with the number only.", "Hello", "What is the capital of Chile?"}) {
    prompts.push_back(format().render(ask(text)));
  }
  for (const float temperature : {0.0F, 1.8F}) {
    AnswerAllOptions options;
    options.turn.sampling.temperature = temperature;
    options.turn.sampling.seed = 3;
    options.turn.max_tokens = 80;
    Engine three(mini().executor(), chunks_of(50));
    const std::vector<TurnResult> together = answer_all(mini(), three, prompts, options);
    EngineOptions one = engine_options();
    one.max_running = 1;
    one.keep_states = false;
    Engine single(mini().executor(), one);
    const std::vector<TurnResult> alone = answer_all(mini(), single, prompts, options);
    ASSERT_EQ(together.size(), 3U);
    for (size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i].ids) << i;
      EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << i;
    }
    if (temperature == 0.0F) {
      EXPECT_EQ(together[0].answer.content, "391");
    }
  }
}

TEST(AnswerAll, CancelledRequestsEnd) {
  const std::vector<ChatPrompt> prompts(3, format().render(ask("Hello")));
  std::atomic<bool> cancelled = true;
  AnswerAllOptions options;
  options.cancelled = &cancelled;
  Engine engine(mini().executor(), engine_options());
  for (const TurnResult& result : answer_all(mini(), engine, prompts, options)) EXPECT_EQ(result.end, RequestEnd::cancelled);
}

TEST(NextLogits, DoNotDependOnChunks) {
  const std::vector<TokenId> ids = format().render(ask("Hello")).ids;
  const std::vector<float> whole = next_logits(mini().executor(), ids, 512);
  EXPECT_EQ(static_cast<int64_t>(whole.size()), mini().executor().vocab_size());
  EXPECT_EQ(next_logits(mini().executor(), ids, 3), whole);
}

}  // namespace
}  // namespace weft::engine_test
