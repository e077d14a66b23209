// Random walks under every schema, as a response and as the arguments of a call, from every place where a prompt may leave the
// model, at the token limit and above it: what comes out is JSON, fulfils the schema, and is whole in time.
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"

#include "grammar_fixture.h"
#include "grammar_walk.h"
#include "schema_oracle.h"

namespace weft::engine_test {
namespace {

constexpr ParserStart kStarts[] = {ParserStart::start, ParserStart::think, ParserStart::response};
// Few letters, so that names are met again, and what spells one of them in another way.
constexpr std::string_view kFew = "ab\"\\u0061:{}, ";
constexpr uint64_t kSeeds = 12;

class Walks : public testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  // The walks of a request from each start, judged by `check`.
  template <class Check>
  void walk(const grammar::AnswerRules& rules, const Check& check) const {
    for (const ParserStart start : kStarts) {
      const int64_t whole = rules.matcher(start, 1 << 20).tokens_to_end();
      for (const int64_t budget : {whole, whole + 1, whole + 3, whole + 30, whole + 200}) {
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
          const Walk walk{seed + 1000 * static_cast<uint64_t>(budget), seed % 2 == 0 ? "" : kFew};
          const Drawn drawn = draw(rules.matcher(start, budget), start, budget, walk, format);
          SCOPED_TRACE(fmt::format("start {}, {} tokens, seed {}: {}", static_cast<int>(start), budget, seed,
                                   format.tokenizer().decode(drawn.ids, ControlText::all)));
          ASSERT_TRUE(drawn.complete);
          ASSERT_EQ(drawn.counters.stray_markers, 0);
          ASSERT_EQ(drawn.counters.abandoned_calls, 0);
          ASSERT_NO_THROW(check(drawn.answer));
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  const Json& one = schema_cases()[std::get<0>(GetParam())];
  const bool is_qwen = std::get<1>(GetParam());
  const ChatFormat& format = is_qwen ? qwen_format() : mini_format();
  const std::shared_ptr<const grammar::Vocabulary> vocabulary = is_qwen ? qwen_vocabulary() : mini_vocabulary();
  const std::string schema = one["schema"].dump();
  const SchemaOracle oracle{one["schema"]};
};

TEST_P(Walks, ResponsesAreValid) {
  const grammar::AnswerRules rules = rules_of(
      request_with(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" + schema + "}}"),
      vocabulary);
  walk(rules, [&](const ChatAnswer& answer) {
    ASSERT_TRUE(oracle.valid(parse_json(answer.content, "content")));
    ASSERT_TRUE(answer.tool_calls.empty());
  });
}

TEST_P(Walks, ArgumentsAreValid) {
  const ChatRequest request =
      request_with(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": )" + schema +
                   R"(}}], "tool_choice": "required")");
  std::optional<grammar::AnswerRules> rules;
  std::vector<std::string> notes;
  const std::optional<Failure> refused = guard([&] { rules = grammar::AnswerRules::of(request, vocabulary, notes); });
  if (refused) {  // a schema that no object fulfils, or constants around all arguments
    EXPECT_TRUE(refused->kind == ErrorKind::bad_input || refused->kind == ErrorKind::unsupported) << refused->message;
    EXPECT_FALSE(one["schema"].is_object() && one["schema"].contains("properties")) << refused->message;
    return;
  }
  walk(*rules, [&](const ChatAnswer& answer) {
    ASSERT_FALSE(answer.tool_calls.empty());
    for (const ToolCall& call : answer.tool_calls) {
      ASSERT_EQ(call.name, "f");
      ASSERT_TRUE(oracle.valid(parse_json(call.arguments, "arguments"))) << call.arguments;
    }
  });
}

std::string name_of(const testing::TestParamInfo<Walks::ParamType>& info) {
  return schema_cases()[std::get<0>(info.param)]["name"].get<std::string>() + (std::get<1>(info.param) ? "_qwen" : "");
}
INSTANTIATE_TEST_SUITE_P(Cases, Walks, testing::Combine(testing::Range<size_t>(0, 37), testing::Bool()), name_of);

}  // namespace
}  // namespace weft::engine_test
