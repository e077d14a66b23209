// How turns end, against an executor that writes what it is told.
#include <gmock/gmock.h>

#include "engine_fixture.h"
#include "executors.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;

struct Scripted {
  explicit Scripted(const std::string& text, int64_t max_context = 4096)
      : executor(new ScriptedExecutor(format().tokenizer().vocab_size() + 100, ids_of(text))),
        model(ChatFormat::load(mini_dir()), std::unique_ptr<Executor>(executor), max_context, {}),
        engine(model.executor(), options()) {}

  [[nodiscard]] EngineOptions options() const {
    EngineOptions made = engine_options(model);
    made.prefill_chunk = 7;
    made.state_memory = ByteCount(1000);
    return made;
  }
  // The sequence of the last answer.
  [[nodiscard]] std::vector<TokenId> consumed() const { return executor->answered; }

  ScriptedExecutor* executor;  // the model's
  Model model;
  Engine engine;
};

constexpr const char* kWhole =
    "It is 4.<|close|>think<|sep|><|open|>response<|sep|>4<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";

TEST(Turn, AClosedMessageEndsItWithoutItsEndToken) {
  Scripted scripted(kWhole);
  ChatSession session(scripted.model, scripted.engine, ask("2 + 2?"));
  const TurnResult result = session.answer(greedy());
  EXPECT_EQ(result.answer.content, "4");
  EXPECT_EQ(result.answer.reasoning, "It is 4.");
  EXPECT_EQ(result.answer.finish_reason, FinishReason::stop);
  EXPECT_EQ(result.end, RequestEnd::stop);
  EXPECT_EQ(result.ids.size(), ids_of(kWhole).size() - 1);
  EXPECT_EQ(result.statistics.generated_tokens, static_cast<int64_t>(result.ids.size()));
  EXPECT_EQ(static_cast<int64_t>(scripted.consumed().size()),
            result.statistics.prompt_tokens + result.statistics.generated_tokens - 1);
}

TEST(Turn, EveryEndTokenEndsItAndNoneIsFed) {
  for (const std::string end : {"[EOS]", "<|end_of_msg|>"}) {
    Scripted scripted("It is 4.<|close|>think<|sep|><|open|>response<|sep|>4" + end);
    ChatRequest request = ask("2 + 2?");
    ChatSession session(scripted.model, scripted.engine, request);
    const TurnResult result = session.answer(greedy());
    EXPECT_EQ(result.answer.content, "4");
    EXPECT_EQ(result.end, RequestEnd::stop);
    EXPECT_EQ(result.ids.back(), ids_of(end).front());
    EXPECT_EQ(text_of(session.ids()), joined(rendered_anew(request, session.messages()).segments));
  }
}

TEST(Turn, LengthCutsAndTheConversationGoesOn) {
  for (const int64_t count : {1, 3, 6, 8, 10, 12}) {
    Scripted scripted(kWhole);
    ChatRequest request = ask("2 + 2?");
    ChatSession session(scripted.model, scripted.engine, request);
    AnswerOptions options = greedy();
    options.turn.max_tokens = count;
    const TurnResult result = session.answer(options);
    EXPECT_EQ(result.end, RequestEnd::length) << count;
    EXPECT_EQ(result.answer.finish_reason, FinishReason::length);
    EXPECT_EQ(static_cast<int64_t>(result.ids.size()), count);
    const std::string text = text_of(session.ids());
    EXPECT_TRUE(text.ends_with("<|close|>message<|sep|><|end_of_msg|>")) << text;
  }
}

TEST(Turn, TheContextIsALimit) {
  const auto prompt = static_cast<int64_t>(format().render(ask("2 + 2?")).ids.size());
  Scripted scripted(kWhole, prompt + 2);
  ChatSession session(scripted.model, scripted.engine, ask("2 + 2?"));
  const TurnResult result = session.answer(greedy());
  EXPECT_EQ(result.end, RequestEnd::length);
  EXPECT_EQ(result.ids.size(), 2U);
  session.add_user("more");
  try {
    static_cast<void>(session.answer(greedy()));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("a context of"));
  }
}

TEST(Turn, CancelledWhileThePromptIsRead) {
  Scripted scripted(kWhole);
  ChatRequest request = ask("2 + 2?");
  ChatSession session(scripted.model, scripted.engine, request);
  std::atomic<bool> cancelled = false;
  AnswerOptions options = greedy();
  options.cancelled = &cancelled;
  options.on_prompt = [&](int64_t done, int64_t) { cancelled = done >= 14; };
  const TurnResult first = session.answer(options);
  EXPECT_EQ(first.end, RequestEnd::cancelled);
  EXPECT_TRUE(first.ids.empty());
  EXPECT_EQ(scripted.consumed().size(), 14U);

  cancelled = false;
  options.on_prompt = {};
  session.add_user("Again, please.");
  const TurnResult second = session.answer(options);
  EXPECT_EQ(second.answer.content, "4");
  EXPECT_EQ(second.statistics.reused_tokens, 14);
  const std::vector<TokenId> consumed = scripted.consumed();
  ASSERT_LT(consumed.size(), session.ids().size());
  EXPECT_EQ(consumed, std::vector<TokenId>(session.ids().begin(), session.ids().begin() + std::ssize(consumed)));
  EXPECT_EQ(text_of(session.ids()), joined(rendered_anew(request, session.messages()).segments));
}

TEST(Turn, CancelledWhileItAnswers) {
  Scripted scripted(kWhole);
  ChatRequest request = ask("2 + 2?");
  ChatSession session(scripted.model, scripted.engine, request);
  std::atomic<bool> cancelled = false;
  AnswerOptions options = greedy();
  options.cancelled = &cancelled;
  options.on_event = [&](const ChatEvent& event) { cancelled = event.kind == ChatEvent::Kind::content; };
  const TurnResult result = session.answer(options);
  EXPECT_EQ(result.end, RequestEnd::cancelled);
  EXPECT_EQ(result.answer.content, "4");
  EXPECT_EQ(text_of(session.ids()), joined(rendered_anew(request, session.messages()).segments));
}

TEST(Turn, AFailedStepLeavesTheConversationAsItWas) {
  Scripted scripted("It is");
  ChatSession session(scripted.model, scripted.engine, ask("2 + 2?"));
  EXPECT_THROW(static_cast<void>(session.answer(greedy())), Error);
  EXPECT_TRUE(session.ids().empty());
  EXPECT_EQ(session.messages().size(), 1U);
  scripted.executor->then(ids_of(kWhole));
  EXPECT_EQ(session.answer(greedy()).answer.content, "4");
}

TEST(Turn, OnlyIdsOfTheTokenizerAreAllowed) {
  Scripted scripted(kWhole);
  ChatSession session(scripted.model, scripted.engine, ask("2 + 2?"));
  static_cast<void>(session.answer(greedy()));
  const std::vector<uint32_t>& mask = scripted.executor->last_request.allowed;
  const auto allowed = [&](int64_t id) { return ((mask.at(static_cast<size_t>(id) / 32) >> (id % 32)) & 1U) != 0; };
  const Tokenizer& tokenizer = format().tokenizer();
  EXPECT_TRUE(allowed(0));
  EXPECT_TRUE(allowed(tokenizer.control_id("<|open|>")));
  EXPECT_TRUE(allowed(tokenizer.control_id("[EOS]")));
  const TokenId reserved = tokenizer.control_id("<|reserved_token_5898|>");
  ASSERT_GT(reserved, 0);
  EXPECT_FALSE(allowed(reserved));
  EXPECT_FALSE(allowed(tokenizer.vocab_size()));
  EXPECT_FALSE(allowed(tokenizer.vocab_size() + 99));
}

TEST(Turn, PenaltiesSeePromptAndAnswerAndSpareControlTokens) {
  Scripted scripted(kWhole);
  ChatSession session(scripted.model, scripted.engine, ask("2 + 2?"));
  AnswerOptions options = greedy();
  static_cast<void>(session.answer(options));
  EXPECT_TRUE(scripted.executor->last_request.history.empty());
  EXPECT_TRUE(scripted.executor->last_request.prompt.empty());

  scripted.executor->then(ids_of(kWhole));
  options.turn.sampling.repetition_penalty = 1.5F;
  const size_t before = session.ids().size();
  session.add_user("Again");
  const TurnResult result = session.answer(options);
  const SampleRequest& request = scripted.executor->last_request;
  EXPECT_EQ(request.history.size() + 1, result.ids.size());
  EXPECT_GT(request.prompt.size(), before);
  EXPECT_THAT(request.never_penalised, ::testing::SizeIs(256));
}

// ---- What a request may ask of the end.

std::string answer_text(const std::string& response) {
  return "Hm.<|close|>think<|sep|><|open|>response<|sep|>" + response +
         "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";
}

TurnResult answer(Scripted& scripted, const AnswerOptions& options, const ChatRequest& request = ask("Hi")) {
  ChatSession session(scripted.model, scripted.engine, request);
  return session.answer(options);
}

TEST(Turn, AStopStringEndsTheContentAndIsNotSeenInTheReasoning) {
  Scripted scripted("Hm. END of that<|close|>think<|sep|><|open|>response<|sep|>one END two<|close|>response<|sep|>");
  AnswerOptions options = greedy();
  options.turn.stop = {"END"};
  std::string streamed;
  options.on_event = [&](const ChatEvent& event) {
    if (event.kind == ChatEvent::Kind::content) streamed += event.text;
  };
  const TurnResult result = answer(scripted, options);
  EXPECT_EQ(result.answer.reasoning, "Hm. END of that");
  EXPECT_EQ(result.answer.content, "one ");
  EXPECT_EQ(streamed, "one ");
  EXPECT_EQ(result.answer.finish_reason, FinishReason::stop);
  EXPECT_EQ(result.stop_string, "END");
  EXPECT_EQ(result.end, RequestEnd::stop);
}

TEST(Turn, WhatMayBeginAStopStringComesAtTheEnd) {
  Scripted scripted(answer_text("one EN"));
  AnswerOptions options = greedy();
  options.turn.stop = {"END"};
  const TurnResult result = answer(scripted, options);
  EXPECT_EQ(result.answer.content, "one EN");
  EXPECT_FALSE(result.stop_string);
}

TEST(Turn, AFurtherEndTokenIsNotShown) {
  const std::vector<TokenId> bang = ids_of("!");
  ASSERT_EQ(bang.size(), 1U);
  Scripted scripted(answer_text("4!"));
  AnswerOptions options = greedy();
  options.turn.end.ids = bang;
  const TurnResult result = answer(scripted, options);
  EXPECT_EQ(result.answer.content, "4");
  EXPECT_EQ(result.stop_id, bang.front());
  EXPECT_EQ(result.answer.finish_reason, FinishReason::stop);
}

TEST(Turn, TheEndIsPassedOverUntilTheLeastLength) {
  const std::string text = answer_text("4");
  const auto length = static_cast<int64_t>(ids_of(text).size());
  Scripted scripted(text + "more and more");
  AnswerOptions options = greedy();
  options.turn.end.ignore = true;
  options.turn.max_tokens = length + 2;
  TurnResult result = answer(scripted, options);
  EXPECT_EQ(result.end, RequestEnd::length);
  EXPECT_EQ(result.answer.finish_reason, FinishReason::length);
  EXPECT_EQ(result.answer.content, "4") << "what follows the end of the message is no part of it";
  EXPECT_EQ(static_cast<int64_t>(result.ids.size()), length + 2);

  Scripted again(text + "more and more");
  options = greedy();
  options.turn.end.least = length + 1;
  result = answer(again, options);
  EXPECT_EQ(static_cast<int64_t>(result.ids.size()), length + 1);
  EXPECT_EQ(result.end, RequestEnd::stop);
}

TEST(Turn, EndTokensAreMaskedUntilTheLeastLength) {
  Scripted scripted(answer_text("4"));
  AnswerOptions options = greedy();
  options.turn.max_tokens = 1;
  options.turn.end.least = 1;
  static_cast<void>(answer(scripted, options));
  const auto allowed = [&](TokenId id) {
    const auto bit = static_cast<uint32_t>(id);
    return ((scripted.executor->last_request.allowed.at(bit / 32) >> (bit % 32)) & 1U) != 0;
  };
  const TokenId end = format().tokenizer().stop_ids().front();
  EXPECT_TRUE(allowed(end)) << "the first token may be the end of an answer of at least one";
  Scripted longer(answer_text("4"));
  options.turn.end.least = 2;
  static_cast<void>(answer(longer, options));
  scripted.executor->last_request = longer.executor->last_request;
  EXPECT_FALSE(allowed(end));
  EXPECT_TRUE(allowed(ids_of("a").front()));
}

constexpr const char* kTwoCalls =
    "Hm.<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|close|>call<|sep|>"
    "<|open|>call tool=\"f\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";

TEST(Turn, OneCallAtMost) {
  ChatRequest request = ask("Hi");
  request.tools = parse_json_value(R"([{"type": "function", "function": {"name": "f"}}])", "tools");
  for (const int64_t most : {0, 1}) {
    // Without rules for the form, as when a tool's schema is not carried out.
    Scripted scripted(kTwoCalls);
    AnswerOptions options = greedy();
    options.turn.max_calls = most;
    const auto turn = std::make_shared<Turn>(scripted.model, scripted.model.format().render(request), options.turn);
    scripted.engine.submit(turn->request({1, 2, 3}), turn);
    while (!turn->over()) scripted.engine.step();
    const TurnResult result = turn->result();
    EXPECT_EQ(result.answer.tool_calls.size(), most == 0 ? 2U : 1U);
    EXPECT_EQ(result.answer.finish_reason, FinishReason::tool_calls);
  }
}

TEST(Turn, LogProbabilitiesOfContentOnly) {
  Scripted scripted(answer_text("one two"));
  AnswerOptions options = greedy();
  options.turn.logprobs = true;
  options.turn.top_logprobs = 2;
  const auto turn = std::make_shared<Turn>(scripted.model, scripted.model.format().render(ask("Hi")), options.turn);
  scripted.engine.submit(turn->request({1, 2, 3}), turn);
  std::vector<TokenLogprob> found;
  while (!turn->over()) {
    scripted.engine.step();
    static_cast<void>(turn->take_events());
    for (TokenLogprob& token : turn->take_logprobs()) found.push_back(std::move(token));
  }
  std::vector<TokenId> ids;
  for (const TokenLogprob& token : found) {
    ids.push_back(token.id);
    EXPECT_EQ(token.logprob, -0.5F);
    ASSERT_EQ(token.top.size(), 2U);
    EXPECT_EQ(token.top[1].logprob, -2.0F);
  }
  EXPECT_EQ(ids, ids_of("one two"));
}

}  // namespace
}  // namespace weft::engine_test
