// The turn of Qwen under a grammar (prompt_and_api.md 8.4): where a schema holds, calls, control tokens, limits.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar_fixture.h"
#include "grammar_walk.h"

namespace weft::engine_test {
namespace {

using grammar::Matcher;
using ::testing::HasSubstr;

const Tokenizer& tokenizer() { return qwen_format().tokenizer(); }

std::vector<TokenId> allowed(Matcher& matcher, int64_t budget = 1000) {
  std::vector<uint32_t> words(qwen_vocabulary()->mask_words());
  matcher.fill_mask(words, budget);
  return allowed_ids(words);
}

// True when each token of the text is in the mask before it.
bool follows(Matcher matcher, const std::string& text) {
  for (const TokenId id : tokenizer().encode(text, true)) {
    const std::vector<TokenId> next = allowed(matcher);
    if (std::ranges::find(next, id) == next.end()) return false;
    matcher.accept(id);
  }
  return true;
}

Matcher matcher_of(const std::string& fields, ParserStart start, int64_t budget = 1000) {
  return rules_of(request_with(fields), qwen_vocabulary()).matcher(start, budget);
}

constexpr const char* kSchema =
    R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema":
       {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})";
constexpr const char* kTools = R"("tools": [
    {"type": "function", "function": {"name": "tide", "strict": true, "parameters": {"type": "object", "properties":
       {"port": {"type": "string", "enum": ["Barry", "R&D"]}, "hours": {"type": "integer", "minimum": 1, "maximum": 24}},
        "required": ["port"]}}},
    {"type": "function", "function": {"name": "a\"b"}}])";
const std::string kCall = "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"port\": \"Barry\"}}\n</tool_call>";
const std::string kOther = "<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": {}}\n</tool_call>";

std::string with_choice(const std::string& choice) { return std::string(kTools) + R"(, "tool_choice": )" + choice; }

TEST(ChatmlGrammar, ASchemaHoldsTheAnswerAndNothingElse) {
  const auto start = ParserStart::start;
  EXPECT_TRUE(follows(matcher_of(kSchema, start), "{\"a\": 17}<|im_end|>"));
  EXPECT_TRUE(follows(matcher_of(kSchema, start), "{\"a\":-1}<|endoftext|>"));
  EXPECT_TRUE(follows(matcher_of(kSchema, ParserStart::response), "{\"a\": 17}<|im_end|>"));
  for (const char* think : {"Some {thoughts}\n</think>\n\n", "x</think>", "<think>\nx\n</think>\n", ""}) {
    const bool ends = *think != 0;
    EXPECT_EQ(follows(matcher_of(kSchema, ParserStart::think), std::string(think) + "{\"a\": 17}<|im_end|>"), ends) << think;
  }
  for (const char* wrong :
       {"x", "<think>", "</think>", "<|im_end|>", "<tool_call>", "{\"a\": 1}\n", "{\"a\": \"", "{}", "{\"a\": 1}<tool_call>"})
    EXPECT_FALSE(follows(matcher_of(kSchema, start), wrong)) << wrong;
  for (const char* wrong : {"<|im_end|>", "x<|im_end|>", "x<tool_call>", "x</think>\n\n\n", "x</think>\n\n<|im_end|>",
                            "x</think>y", "x<|im_start|>"})
    EXPECT_FALSE(follows(matcher_of(kSchema, ParserStart::think), wrong)) << wrong;
}

TEST(ChatmlGrammar, CallsOfTheModelsChoice) {
  for (const ParserStart start : {ParserStart::start, ParserStart::response}) {
    EXPECT_TRUE(follows(matcher_of(kTools, start), "Hello {\"<|im_end|>"));
    EXPECT_TRUE(follows(matcher_of(kTools, start), "I look.\n" + kCall + "<|im_end|>"));
    EXPECT_TRUE(follows(matcher_of(kTools, start), kCall + "\n" + kOther + "\n" + kCall + "<|im_end|>"));
    EXPECT_FALSE(follows(matcher_of(kTools, start), kCall + "x"));
    EXPECT_FALSE(follows(matcher_of(kTools, start), kCall + kCall));
    EXPECT_FALSE(follows(matcher_of(kTools, start), "<tool_call>\n{\"name\": \"tide\", \"arguments\": {}"));
    EXPECT_FALSE(follows(matcher_of(kTools, start), "<tool_call>\n{\"name\": \"other"));
    EXPECT_FALSE(follows(matcher_of(kTools, start), "<tool_call>\n{\"name\": \"tide\", \"arguments\": {\"hours\": 25"));
    EXPECT_FALSE(follows(matcher_of(kTools, start), "a</tool_call>"));
  }
  EXPECT_TRUE(follows(matcher_of(kTools, ParserStart::start), "<think>\nx\n</think>\n\n" + kCall));
  EXPECT_TRUE(follows(matcher_of(kTools, ParserStart::think), "x\n</think>\n\nI look.\n" + kCall));
  EXPECT_TRUE(follows(matcher_of(kTools, ParserStart::think), "x<|im_end|>"));
  EXPECT_FALSE(follows(matcher_of(kTools, ParserStart::think), "x<tool_call>"));
}

TEST(ChatmlGrammar, RequiredNamedAndForbiddenCalls) {
  const std::string required = with_choice(R"("required")");
  EXPECT_TRUE(follows(matcher_of(required, ParserStart::start), kCall + "\n" + kOther + "<|im_end|>"));
  EXPECT_TRUE(follows(matcher_of(required, ParserStart::think), "x\n</think>\n\n" + kCall + "<|im_end|>"));
  EXPECT_FALSE(follows(matcher_of(required, ParserStart::start), "I"));
  EXPECT_FALSE(follows(matcher_of(required, ParserStart::think), "x<|im_end|>"));
  const std::string named = with_choice(R"({"type": "function", "function": {"name": "tide"}})");
  EXPECT_TRUE(follows(matcher_of(named, ParserStart::start), kCall + "<|im_end|>"));
  EXPECT_FALSE(follows(matcher_of(named, ParserStart::start), kCall + "\n"));
  EXPECT_FALSE(follows(matcher_of(named, ParserStart::start), "<tool_call>\n{\"name\": \"a"));
  const std::string none = with_choice(R"("none")");
  EXPECT_TRUE(follows(matcher_of(none, ParserStart::start), "I <tool<|im_end|>"));
  EXPECT_FALSE(follows(matcher_of(none, ParserStart::start), "<tool_call>"));
}

TEST(ChatmlGrammar, ASchemaBesideCalls) {
  const std::string both = std::string(kTools) + ", " + kSchema;
  EXPECT_TRUE(follows(matcher_of(both, ParserStart::start), "{\"a\": 17}<|im_end|>"));
  EXPECT_TRUE(follows(matcher_of(both, ParserStart::start), kCall + "<|im_end|>"));
  EXPECT_TRUE(follows(matcher_of(both, ParserStart::think), "x\n</think>\n\n" + kCall + "<|im_end|>"));
  EXPECT_FALSE(follows(matcher_of(both, ParserStart::start), "I"));
}

TEST(ChatmlGrammar, NoNameComesTwice) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": true}}}],
         "tool_choice": "required")";
  const std::string begin = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, ";
  EXPECT_TRUE(follows(matcher_of(tools, ParserStart::start), begin + "\"ab\": {\"a\": 2}, \"name\": 3}}\n</tool_call>"));
  EXPECT_FALSE(follows(matcher_of(tools, ParserStart::start), begin + "\"a\":"));
  EXPECT_FALSE(follows(matcher_of(tools, ParserStart::start), begin + "\"\\u0061\":"));
  const std::string object = R"("response_format": {"type": "json_object"})";
  EXPECT_FALSE(follows(matcher_of(object, ParserStart::start), "{\"a\": 1, \"a\":"));
  EXPECT_FALSE(follows(matcher_of(object, ParserStart::think), "\"a\"</think>\n{\"a\": 1, \"a\":"));
}

TEST(ChatmlGrammar, AContinuedAnswerGoesOnWhereItStands) {
  ChatRequest request = request_with(kSchema);
  request.messages.push_back({.role = Role::assistant,
                              .index = 1,
                              .name = {},
                              .content = {"{\"a\": 1"},
                              .reasoning = {},
                              .tool_calls = {},
                              .tool_call_id = {},
                              .tool = {},
                              .tools = {}});
  request.continue_final = true;
  EXPECT_TRUE(follows(rules_of(request, qwen_vocabulary()).matcher(ParserStart::response, 100), "7}<|im_end|>"));
  request.messages.back().content = {"[1"};
  try {
    (void)rules_of(request, qwen_vocabulary()).matcher(ParserStart::response, 100);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("wanted the beginning of an answer that the request allows"));
  }
}

// From the smallest number of tokens on; what closes the turn is given up before the answer is.
TEST(ChatmlGrammar, EndsInTimeAtEveryTokenLimit) {
  for (const std::string& fields : {std::string(kSchema), with_choice(R"("required")"), std::string(kTools) + ", " + kSchema}) {
    for (const ParserStart start : {ParserStart::start, ParserStart::think}) {
      const grammar::AnswerRules rules = rules_of(request_with(fields), qwen_vocabulary());
      const int64_t whole = rules.matcher(start, 1 << 20).tokens_to_end();
      EXPECT_THROW((void)rules.matcher(start, whole - 2), Error);
      for (int64_t budget = whole - 1; budget < whole + 12; ++budget) {
        for (uint64_t seed = 0; seed < 8; ++seed) {
          const Drawn drawn = draw(rules.matcher(start, budget), start, budget, {.seed = seed}, qwen_format());
          SCOPED_TRACE(tokenizer().decode(drawn.ids, ControlText::all));
          EXPECT_EQ(drawn.complete, budget >= whole);
          EXPECT_TRUE(!drawn.answer.content.empty() || !drawn.answer.tool_calls.empty());
          if (!drawn.answer.content.empty()) {
            EXPECT_NO_THROW((void)parse_json_value(drawn.answer.content, "content"));
          }
          for (const ToolCall& call : drawn.answer.tool_calls)
            EXPECT_NO_THROW((void)parse_json_value(call.arguments, "arguments"));
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine_test
