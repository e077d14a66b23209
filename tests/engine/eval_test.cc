// What tasks expect, and perplexity.
#include <cmath>

#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/next_logits.h"
#include "engine/perplexity.h"
#include "engine/tasks.h"

#include "engine_fixture.h"

namespace weft::engine_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> missed(const ChatAnswer& answer, const char* expect) {
  return misses(answer, parse_json(expect, "test"));
}

TEST(Tasks, Content) {
  ChatAnswer answer;
  answer.content = "391";
  EXPECT_THAT(missed(answer, R"({"content": "391", "reasoning": "none"})"), IsEmpty());
  EXPECT_THAT(missed(answer, R"({"content": "392", "reasoning": "some"})"), SizeIs(2));
  answer.content = "391 ";
  EXPECT_THAT(missed(answer, R"({"content": "391"})"), SizeIs(1));
}

TEST(Tasks, ToolCallsAreComparedAsValuesInOrder) {
  ChatAnswer answer;
  answer.tool_calls = {{"1", "a", R"({"y":1.0,"x":"v"})"}, {"2", "b", "{}"}};
  EXPECT_THAT(
      missed(answer, R"({"tool_calls": [{"name": "a", "arguments": {"y": 1, "x": "v"}}, {"name": "b", "arguments": {}}]})"),
      IsEmpty());
  EXPECT_THAT(
      missed(answer, R"({"tool_calls": [{"name": "b", "arguments": {}}, {"name": "a", "arguments": {"y": 1, "x": "v"}}]})"),
      SizeIs(1));
  EXPECT_THAT(missed(answer, R"({"tool_calls": [{"name": "a", "arguments": {"y": 1, "x": "v"}}]})"), SizeIs(1));
  EXPECT_THAT(missed(answer, R"({"content": ""})"), SizeIs(1)) << "calls that nobody expects";
  answer.tool_calls = {{"1", "a", "{bad"}};
  EXPECT_THAT(missed(answer, R"({"tool_calls": [{"name": "a", "arguments": {}}]})"), SizeIs(1));
}

TEST(Tasks, ArgumentsInAnotherOrderAreTheSame) {
  ChatAnswer answer;
  answer.tool_calls = {{"1", "a", R"({"x":"v","y":1})"}};
  EXPECT_THAT(missed(answer, R"({"tool_calls": [{"name": "a", "arguments": {"y": 1, "x": "v"}}]})"), IsEmpty());
}

TEST(Tasks, ContainsAndPython) {
  ChatAnswer answer;
  answer.content = "```python\nimport time\n\ndef retry(n):\n    pass\n```\nUse retry_all(.";
  EXPECT_THAT(missed(answer, R"({"contains": ["def retry", "import time"], "python": "retry"})"), IsEmpty());
  EXPECT_THAT(missed(answer, R"({"contains": ["def retry", "sleep"], "python": "retry_all"})"), SizeIs(2));
}

TEST(Tasks, AnUnknownExpectationIsRefused) {
  EXPECT_THROW(static_cast<void>(missed({}, R"({"contents": "x"})")), Error);
  EXPECT_THROW(static_cast<void>(missed({}, R"({"content": 3})")), Error);
  EXPECT_THROW(static_cast<void>(read_tasks(R"({"prompts": [{"name": "x", "messages": [{"role": "user", "content": "x"}],
                                             "expect": {"colour": "red"}}]})",
                                            "test")),
               Error);
  EXPECT_THROW(static_cast<void>(read_tasks("[]", "test")), Error);
  EXPECT_THROW(static_cast<void>(read_tasks(R"({"prompts": []})", "test")), Error);
  const auto message = [](std::string_view prompt) -> std::string {
    try {
      static_cast<void>(read_tasks(fmt::format(R"({{"prompts": [{}]}})", prompt), "file.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(R"({"name": "x", "messages": [{"role": "user"}], "expect": {"colour": "red"}})"),
              ::testing::AllOf(::testing::StartsWith("[file.json, prompt 'x'] "), ::testing::HasSubstr("colour")));
  EXPECT_THAT(message(R"({"name": "x", "messages": [{"role": "usr"}], "expect": {}})"),
              ::testing::AllOf(::testing::StartsWith("[file.json, prompt 'x'] "), ::testing::HasSubstr("messages[0].role")));
}

// A misspelt key would be a task that tests less than it says.
TEST(Tasks, UnknownKeysAreRefused) {
  const auto message = [](std::string_view file) -> std::string {
    try {
      static_cast<void>(read_tasks(file, "file.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto with = [&](std::string_view members) {
    return message(fmt::format(
        R"({{"prompts": [{{"name": "x", "messages": [{{"role": "user", "content": "x"}}], "expect": {{}}, {}}}]}})", members));
  };
  EXPECT_EQ(with(R"("kind": "k")"), "no error");
  EXPECT_EQ(
      with(R"("kinds": "k")"),
      "[file.json, prompt 'x'] wanted name, kind, messages, tools, options, thinking, ids, expect, reference, found 'kinds'");
  EXPECT_EQ(with(R"("reference": {"id": [1]})"), "[file.json, prompt 'x', reference] wanted ids, content, good, found 'id'");
  EXPECT_EQ(message(R"({"prompt": [], "prompts": []})"), "[file.json] wanted about, prompts, found 'prompt'");
  EXPECT_EQ(with(R"("thinking": false, "options": {"thinking": false})"), "no error");
  EXPECT_EQ(with(R"("thinking": false)"), "[file.json, prompt 'x'] thinking: wanted true as the options say, found false");
}

TEST(Tasks, ReportsWhereAReferenceIsLeft) {
  const std::vector<Task> tasks = read_tasks(R"({"prompts": [
      {"name": "same", "messages": [{"role": "user", "content": "Hello"}], "tools": null, "options": {"thinking": false},
       "ids": [1, 2], "expect": {"reasoning": "none"}},
      {"name": "other", "kind": "k", "messages": [{"role": "user", "content": "Hello"}], "expect": {},
       "reference": {"ids": [1, 2, 3], "good": true}}]})",
                                             "test");
  AnswerAllOptions options;
  options.turn.max_tokens = 4;
  Engine engine(mini().executor(), engine_options());
  const TasksReport report = run_tasks(mini(), engine, tasks, options);
  ASSERT_EQ(report.prompts.size(), 2U);
  EXPECT_EQ(report.prompts[0].prompt_equal, false);
  EXPECT_FALSE(report.prompts[0].differs);
  ASSERT_TRUE(report.prompts[1].differs);
  EXPECT_EQ(report.prompts[1].differs->index, 0);
  EXPECT_EQ(report.prompts[1].differs->found, report.prompts[1].turn.ids[0]);
  EXPECT_EQ(report.prompts[1].differs->wanted, 1);
  const std::vector<float> logits = next_logits(mini().executor(), format().render(tasks[1].request).ids, 512);
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  EXPECT_EQ(report.prompts[1].differs->margin, sorted[0] - sorted[1]);
  EXPECT_EQ(report.prompts[1].differs->to_reference, sorted[0] - logits[1]);
  const Json json = report.to_json();
  EXPECT_EQ(json["passed"], 2);
  EXPECT_EQ(json["total"], 2);
  EXPECT_EQ(json["reference_passed"], 1);
  EXPECT_EQ(json["prompts"][1]["differs"]["token"], 0);
}

TEST(Tasks, AnswersAreHeldToTheirSchemas) {
  const auto with_schema = [](const std::string& schema) {
    return read_tasks(R"({"prompts": [
        {"name": "free", "messages": [{"role": "user", "content": "What is 17 * 23?"}], "expect": {}},
        {"name": "held", "messages": [{"role": "user", "content": "What is 17 * 23?"}], "options": {"thinking": false,
         "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" +
                          schema + R"(}}},
         "expect": {"contains": ["colour"]}}]})",
                      "test");
  };
  AnswerAllOptions options;
  options.turn.max_tokens = 60;
  Engine engine(mini().executor(), engine_options());
  const TasksReport report = run_tasks(mini(), engine, with_schema(R"({"type": "object", "properties": {"colour":
      {"enum": ["red", "blue"]}}, "required": ["colour"]})"),
                                       options);
  EXPECT_TRUE(report.prompts[1].passed) << report.prompts[1].turn.answer.content;
  EXPECT_EQ(parse_json(report.prompts[1].turn.answer.content, "content").size(), 1U);
  EXPECT_THAT(report.prompts[0].turn.answer.content, Not(HasSubstr("colour")));
  const std::optional<Failure> refused =
      guard([&] { (void)run_tasks(mini(), engine, with_schema(R"({"not": {"type": "null"}})"), options); });
  EXPECT_THAT(refused.value().message, AllOf(HasSubstr("prompt 'held'"), HasSubstr("not: this keyword")));
}

// The definition, token by token, from logits of whole prefixes.
TEST(Perplexity, IsTheMeanOverPrefixesOfEachWindow) {
  const std::vector<TokenId> ids = format().tokenizer().encode("The capital of Chile is Santiago.");
  ASSERT_GT(ids.size(), 6U);
  for (const int64_t window : {4, 100}) {
    double sum = 0.0;
    int64_t scored = 0;
    const auto count = static_cast<int64_t>(ids.size());
    for (int64_t at = 0; at < count; ++at) {
      const int64_t begin = at / window * window;
      if (at == begin) continue;
      const std::vector<float> logits = next_logits(
          mini().executor(), std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(at - begin)), 512);
      long double total = 0.0L;
      for (const float logit : logits) total += std::exp(static_cast<long double>(logit));
      sum += static_cast<double>(std::log(total)) - logits[static_cast<size_t>(ids[static_cast<size_t>(at)])];
      ++scored;
    }
    for (const int64_t chunk : {1, 3, 64}) {
      const PerplexityReport report = measure_perplexity(
          mini().executor(), ids, {.window = window, .chunk = chunk, .cancelled = nullptr, .on_progress = {}});
      EXPECT_EQ(report.scored, scored);
      EXPECT_EQ(report.tokens, count);
      ASSERT_TRUE(report.nats && report.perplexity);
      EXPECT_NEAR(*report.nats, sum / static_cast<double>(scored), 1e-9);
      EXPECT_NEAR(*report.perplexity, std::exp(*report.nats), 1e-9);
    }
  }
}

PerplexityOptions with_window(int64_t window) {
  PerplexityOptions options;
  options.window = window;
  return options;
}

TEST(Perplexity, Refuses) {
  const std::vector<TokenId> one = {1};
  const std::vector<TokenId> outside = {1, 1 << 20};
  EXPECT_THROW(static_cast<void>(measure_perplexity(mini().executor(), one, with_window(10))), Error);
  EXPECT_THROW(static_cast<void>(measure_perplexity(mini().executor(), outside, with_window(10))), Error);
  EXPECT_THROW(static_cast<void>(measure_perplexity(mini().executor(), std::vector<TokenId>{1, 2}, with_window(1))), Error);
}

}  // namespace
}  // namespace weft::engine_test
