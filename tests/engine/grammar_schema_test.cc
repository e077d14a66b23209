// Schemas against the verdicts of another program, and answers drawn at random under masks against a validator of their own.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar_fixture.h"
#include "grammar_walk.h"
#include "schema_oracle.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;

class Schemas : public testing::TestWithParam<size_t> {
 protected:
  const Json& one = schema_cases()[GetParam()];
  const std::string schema = one["schema"].dump();
};

TEST_P(Schemas, TheOracleJudgesAsAnotherProgramDoes) {
  const SchemaOracle oracle(one["schema"]);
  for (const std::string text : one["valid"]) EXPECT_TRUE(oracle.valid(parse_json(text, "text"))) << text;
  for (const std::string text : one["invalid"]) EXPECT_FALSE(oracle.valid(parse_json(text, "text"))) << text;
}

TEST_P(Schemas, AcceptsWhatFulfilsItAndNothingElse) {
  const Compiled compiled = compile_schema(schema);
  for (const std::string text : one["valid"]) EXPECT_TRUE(compiled.accepts(text)) << text;
  for (const std::string text : one["invalid"]) EXPECT_FALSE(compiled.accepts(text)) << text;
}

// From the smallest number of tokens in which an answer fits: with the markers behind it, and without them.
TEST_P(Schemas, AnswersAreValidAtEveryTokenLimit) {
  const SchemaOracle oracle(one["schema"]);
  const grammar::AnswerRules rules = rules_of(
      request_with(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" + schema + "}}"));
  const int64_t whole = rules.matcher(ParserStart::response, 1 << 20).tokens_to_end();
  int64_t least = whole;
  while (least > 1) {
    try {
      (void)rules.matcher(ParserStart::response, least - 1);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("max_tokens"));
      break;
    }
    --least;
  }
  EXPECT_LT(least, whole);
  std::vector<int64_t> budgets{whole + 1, whole + 2, whole + 7, whole + 40, 300};
  for (int64_t budget = least; budget <= whole; ++budget) budgets.push_back(budget);
  for (const int64_t budget : budgets) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const Drawn drawn = draw(rules.matcher(ParserStart::response, budget), ParserStart::response, budget,
                               {.seed = seed + 100 * static_cast<uint64_t>(budget)});
      SCOPED_TRACE(mini_format().tokenizer().decode(drawn.ids, ControlText::all));
      ASSERT_NO_THROW(ASSERT_TRUE(oracle.valid(parse_json(drawn.answer.content, "answer"))));
      if (budget >= whole) {
        ASSERT_TRUE(drawn.complete);
      }
    }
  }
}

std::string schema_name(const testing::TestParamInfo<size_t>& info) { return schema_cases()[info.param]["name"]; }
INSTANTIATE_TEST_SUITE_P(Cases, Schemas, testing::Range<size_t>(0, 37), schema_name);

}  // namespace
}  // namespace weft::engine_test
