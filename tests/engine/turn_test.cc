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

}  // namespace
}  // namespace weft::engine_test
