// weft generate and weft chat with k3-mini, as a user runs them.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/json.h"

#include "program.h"

namespace weft::app_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMultiply = "What is 17 * 23? Answer with the number only.";

std::vector<std::string> generate(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"generate", "-m", mini_dir()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The file that README.md names.
std::filesystem::path weather_tools() { return std::filesystem::path(WEFT_SOURCE_DIR) / "examples/tools.json"; }

TEST(Generate, WritesExactlyTheAnswer) {
  const Outcome outcome = run(generate({"-p", kMultiply, "--temperature", "0"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "391");
  expect_no_markers(outcome.err);
  for (const char* part :
       {"prompt 100 tokens", "generated ", "tokens/s", "per token", "GB/s", "peak memory", "profile exact"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_THAT(outcome.err, Not(HasSubstr("391"))) << "reasoning is shown when asked for only";
}

TEST(Generate, ReasoningGoesToStandardError) {
  const Outcome outcome = run(generate({"-p", kMultiply, "--temperature", "0", "--show-reasoning"}));
  EXPECT_EQ(outcome.out, "391");
  EXPECT_THAT(outcome.err, HasSubstr("The answer is 391."));
  expect_no_markers(outcome.err);
}

TEST(Generate, JsonKeepsReasoningApart) {
  const Outcome outcome = run(generate({"-p", kMultiply, "--temperature", "0", "--json", "--seed", "5"}));
  EXPECT_EQ(outcome.code, 0);
  expect_no_markers(outcome.out);
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["content"], "391");
  EXPECT_THAT(json["reasoning_content"].get<std::string>(), HasSubstr("17 * 23"));
  EXPECT_FALSE(json.contains("tool_calls"));
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 100);
  EXPECT_GT(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 10);
  EXPECT_EQ(json["weft"]["sampling"]["seed"], 5);
  EXPECT_EQ(json["weft"]["profile"], "exact");
}

TEST(Generate, ThinkingOff) {
  const Outcome outcome = run(generate({"-p", "Hello", "--thinking", "off", "--temperature", "0", "--json"}));
  const Json json = parse_json(outcome.out, "output");
  EXPECT_FALSE(json.contains("reasoning_content"));
  EXPECT_NE(json["content"], "");
}

TEST(Generate, ToolCall) {
  const std::vector<std::string> request = {"-p", "What is the weather in Tokyo?", "--tools", weather_tools(), "--temperature",
                                            "0"};
  const Outcome text = run(generate(request));
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out, "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Tokyo\"}}\n");
  std::vector<std::string> with_json = request;
  with_json.emplace_back("--json");
  const Json json = parse_json(run(generate(with_json)).out, "output");
  EXPECT_EQ(json["content"], nullptr);
  EXPECT_EQ(json["finish_reason"], "tool_calls");
  ASSERT_EQ(json["tool_calls"].size(), 1U);
  EXPECT_EQ(json["tool_calls"][0]["type"], "function");
  EXPECT_EQ(json["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(json["tool_calls"][0]["function"]["arguments"], R"({"city": "Tokyo"})");
  EXPECT_THAT(json["tool_calls"][0]["id"].get<std::string>(), ::testing::MatchesRegex("call_[A-Za-z0-9]+"));
}

TEST(Generate, MessagesFromStandardInput) {
  RunOptions options;
  options.input = R"({"messages": [{"role": "user", "content": "What is the capital of Chile?"}], "temperature": 0})";
  EXPECT_EQ(run(generate({"--messages", "-"}), options).out, "The capital of Chile is Santiago.");
}

TEST(Generate, NotesFieldsThatItDoesNotCarryOut) {
  RunOptions options;
  options.input = R"({"messages": [{"role": "user", "content": "Hi", "colour": 1}], "stop": "x", "temperatur": 0})";
  const Outcome outcome = run(generate({"--messages", "-", "-n", "1", "--json"}), options);
  const Json notes = parse_json(outcome.out, "output")["weft"]["notes"];
  for (const char* note : {"'stop' is not carried out by weft generate", "'temperatur' is not a known field and was ignored",
                           "'messages[].colour' is not a known field and was ignored"}) {
    EXPECT_THAT(notes.dump(), HasSubstr(note));
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("note: {}\n", note)));
  }
}

TEST(Generate, MaxTokensEndsWithLength) {
  const Json json = parse_json(run(generate({"-p", kMultiply, "-n", "5", "--temperature", "0", "--json"})).out, "output");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["content"], "");
}

TEST(Generate, OneTokenHasNoRate) {
  const Outcome outcome = run(generate({"-p", kMultiply, "-n", "1", "--temperature", "0", "--json"}));
  EXPECT_THAT(outcome.err, HasSubstr("generated 1 token; "));
  EXPECT_THAT(outcome.err, Not(HasSubstr("GB/s")));
  EXPECT_EQ(parse_json(outcome.out, "output")["weft"]["generated_tokens_per_second"], nullptr);
}

TEST(Generate, TheSameAnswerHoweverItIsComputed) {
  const std::vector<std::vector<std::string>> ways = {
      {"--threads", "1"},
      {"--threads", "2", "--prefill-chunk", "7"},
      {"--threads", "1", "--prefill-chunk", "1", "--pp-layers", "0-3,4-7,8-11"},
      {"--threads", "2", "--pp-layers", "1+11", "--pp-size", "2"},
      {"--threads", "1", "--pp-size", "3", "--pp-prefill-chunk", "64"},
  };
  for (const std::vector<std::string>& request :
       {std::vector<std::string>{"-p", kMultiply, "--temperature", "0"},
        std::vector<std::string>{"-p", "Write a Python function that reverses a string.", "--temperature", "1.7", "--seed",
                                 "42"}}) {
    std::string expected;
    for (const std::vector<std::string>& way : ways) {
      std::vector<std::string> arguments = request;
      arguments.insert(arguments.end(), way.begin(), way.end());
      arguments.insert(arguments.end(), {"--json", "-n", "100"});
      const Json json = parse_json(run(generate(arguments)).out, "output");
      const std::string answer = json["reasoning_content"].get<std::string>() + "|" + json["content"].get<std::string>();
      if (expected.empty()) expected = answer;
      EXPECT_EQ(answer, expected);
    }
  }
}

TEST(Generate, CtrlCKeepsWhatWasWritten) {
  RunOptions options;
  options.interrupt_at = "Compute";  // the first words of the reasoning
  const Outcome outcome =
      run(generate({"-p", kMultiply, "--temperature", "0", "--show-reasoning", "--json", "--reference"}), options);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted: prompt 100 tokens"));
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["finish_reason"], nullptr);
  EXPECT_EQ(json["weft"]["interrupted"], true);
  EXPECT_THAT(json["reasoning_content"].get<std::string>(), ::testing::StartsWith("Compute"));
}

TEST(Generate, ARequestsSchemaIsObeyed) {
  const auto request = [](const std::string& schema) {
    const auto path = std::filesystem::path(::testing::TempDir()) / "weft_schema_request.json";
    std::ofstream(path)
        << R"({"messages": [{"role": "user", "content": "What is 17 * 23?"}], "temperature": 0, "response_format":
        {"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": )"
        << schema << "}}}";
    return generate({"--messages", path});
  };
  const Outcome outcome = run(request(R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})"));
  EXPECT_EQ(outcome.code, 0);
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json.size(), 1U);
  EXPECT_TRUE(json.at("n").is_number_integer());
  EXPECT_THAT(outcome.err, Not(HasSubstr("not carried out")));

  const Outcome refused = run(request(R"({"properties": {"n": {"not": {}}}})"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("#/properties/n/not: this keyword is not supported"));
}

TEST(Generate, ASessionFolderSparesTheNextRunThePrompt) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / fmt::format("weft_session_{}", ::getpid());
  const auto answer = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"-p", kMultiply, "--temperature", "0", "--json"});
    const Outcome outcome = run(generate(std::move(more)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "output");
  };
  const std::vector<std::string> session = {"--session", folder.string(), "--session-disk", "1GiB", "--state-memory", "64MiB"};
  const Json first = answer(session);
  EXPECT_EQ(first["weft"]["tokens_reused"], 0);
  const Json second = answer(session);
  EXPECT_EQ(second["weft"]["tokens_reused"], 99);  // of 100: the last one gives the logits
  EXPECT_EQ(second["weft"]["tokens_reused_from"], "disk");
  EXPECT_EQ(second["content"], first["content"]);
  EXPECT_EQ(second["reasoning_content"], first["reasoning_content"]);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run(generate({"-p", "x", "--session-disk", "1GiB"})).code, 2);
  EXPECT_EQ(run(generate({"-p", "x", "--state-memory", "much"})).code, 2);
  const Outcome small = run(generate({"-p", "x", "--state-memory", "4KiB"}));
  EXPECT_NE(small.code, 0);
  EXPECT_THAT(small.err, HasSubstr("state memory: wanted at least"));
}

TEST(Generate, ATimeLimitEndsTheAnswer) {
  const Outcome outcome = run(generate({"-p", kMultiply, "--time-limit", "0.000001", "--json"}));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(parse_json(outcome.out, "output")["weft"]["timed_out"], true);
  EXPECT_THAT(outcome.err, HasSubstr("time limit"));
  EXPECT_EQ(run(generate({"-p", "x", "--time-limit", "0"})).code, 2);
}

TEST(Chat, AnswersLineByLineAndKeepsItsState) {
  RunOptions options;
  options.input = "What is the capital of Chile?\n\nHello\n/reset\nHello\n/exit\nnever read\n";
  const Outcome outcome = run({"chat", "-m", mini_dir(), "--temperature", "0"}, options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, ::testing::StartsWith("The capital of Chile is Santiago.\n"));
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3);
  EXPECT_THAT(outcome.err, HasSubstr("kept from before"));
  expect_no_markers(outcome.out + outcome.err);
}

TEST(Chat, ARefusedMessageLeavesTheConversation) {
  RunOptions options;
  std::string too_long;
  for (int i = 0; i < 5000; ++i) too_long += "hello ";
  options.input = "What is the capital of Chile?\nbad \xff\n" + too_long + "\nHello\n";
  const Outcome outcome = run({"chat", "-m", mini_dir(), "--temperature", "0"}, options);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("a context of 4096"));
  EXPECT_THAT(outcome.err, HasSubstr("/reset"));
  options.input = "What is the capital of Chile?\nHello\n";
  EXPECT_EQ(run({"chat", "-m", mini_dir(), "--temperature", "0"}, options).out, outcome.out);
}

TEST(Chat, ToolResults) {
  RunOptions options;
  options.input = "/result early\nWhat is the weather in Tokyo?\n/result {\"condition\": \"sunny\", \"temperature\": 4}\n";
  const Outcome outcome = run({"chat", "-m", mini_dir(), "--temperature", "0", "--tools", weather_tools()}, options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, ::testing::StartsWith("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Tokyo\"}}\n"));
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2);
  EXPECT_THAT(outcome.out, HasSubstr("Tokyo is sunny"));
  EXPECT_THAT(outcome.err, HasSubstr("no tool call waits"));
}

}  // namespace
}  // namespace weft::app_test
