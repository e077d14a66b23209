// Answers of k3-mini under schemas and tool choices, through the executor.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "schema_oracle.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;

TurnResult answer(const std::string& fields, const AnswerOptions& options) {
  Engine engine(mini().executor(), engine_options());
  ChatSession session(mini(), engine,
                      parse_chat_request(R"({"messages": [{"role": "user", "content": "What is 17 * 23?"}], )" + fields + "}"));
  return session.answer(options);
}

AnswerOptions sampled(uint64_t seed, std::optional<int64_t> max_tokens) {
  AnswerOptions options;
  options.turn.sampling.temperature = 1.0F;
  options.turn.sampling.seed = seed;
  options.turn.max_tokens = max_tokens;
  return options;
}

const std::string kSchema =
    R"({"type": "object", "properties": {"answer": {"type": "integer"}, "steps": {"type": "array", "items":
    {"type": "string"}, "maxItems": 3}, "sure": {"type": "boolean"}}, "required": ["answer", "sure"], "additionalProperties": false})";

std::string as_format(const std::string& schema) {
  return R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": )" + schema +
         "}}";
}

TEST(GrammarAnswer, ResponsesFulfilTheSchema) {
  const Json schema = parse_json(kSchema, "schema");
  const SchemaOracle oracle(schema);
  const auto check = [&](const TurnResult& result) {
    EXPECT_TRUE(oracle.valid(parse_json(result.answer.content, "content"))) << result.answer.content;
    EXPECT_EQ(result.end, RequestEnd::stop);
    EXPECT_EQ(result.counters.stray_markers, 0);
    EXPECT_TRUE(result.notes.empty());
  };
  const TurnResult greedy_answer = answer(as_format(kSchema), greedy());
  check(greedy_answer);
  EXPECT_NE(greedy_answer.answer.reasoning, "");
  // With few tokens the reasoning is cut short, not the answer.
  for (const int64_t limit : {40, 60, 100}) check(answer(as_format(kSchema), sampled(static_cast<uint64_t>(limit), limit)));
  for (uint64_t seed = 0; seed < 4; ++seed) check(answer(as_format(kSchema) + R"(, "thinking": false)", sampled(seed, 200)));
}

TEST(GrammarAnswer, ALimitThatNoAnswerFitsIsRefused) {
  try {
    (void)answer(as_format(kSchema), sampled(1, 5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("max_tokens"));
  }
}

TEST(GrammarAnswer, RequiredCallsAreMade) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties":
      {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}], "tool_choice": )";
  for (const std::string choice : {R"("required")", R"({"type": "function", "function": {"name": "multiply"}})"}) {
    const TurnResult result = answer(tools + choice, sampled(3, 300));
    ASSERT_FALSE(result.answer.tool_calls.empty());
    for (const ToolCall& call : result.answer.tool_calls) {
      EXPECT_EQ(call.name, "multiply");
      const Json arguments = parse_json(call.arguments, "arguments");
      EXPECT_TRUE(arguments.size() == 2 && arguments.at("a").is_number_integer() && arguments.at("b").is_number_integer());
    }
    EXPECT_EQ(result.answer.finish_reason, FinishReason::tool_calls);
  }
  EXPECT_TRUE(answer(tools + R"("none")", greedy()).answer.tool_calls.empty());
}

}  // namespace
}  // namespace weft::engine_test
