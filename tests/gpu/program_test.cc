// The program with --device cuda, as a user runs it.
#include "app/program.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "base/json.h"

namespace weft::app_test {
namespace {

using ::testing::HasSubstr;

TEST(GpuProgram, Answers391) {
  for (const char* profile : {"exact", "bf16"}) {
    const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "What is 17 * 23? Answer with the number only.",
                                 "--temperature", "0", "--device", "cuda", "--profile", profile});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "391") << profile;
    expect_no_markers(outcome.err);
  }
}

TEST(GpuProgram, CallsTheTool) {
  const auto tools = std::filesystem::path(::testing::TempDir()) / "weft_tools.json";
  std::ofstream(tools) << R"([{"type": "function", "function": {"name": "get_weather",
      "description": "Get the current weather for a city.",
      "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}},
                     "required": ["city"]}}}])";
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "What is the weather in Tokyo?", "--tools", tools,
                               "--temperature", "0", "--device", "cuda"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Tokyo\"}}\n");
}

TEST(GpuProgram, EvalTasks) {
  const Outcome outcome = run({"eval", "tasks", mini_dir() + "/eval.json", "-m", mini_dir(), "--json", "--device", "cuda"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["total"], 64);
  EXPECT_GE(json["passed"], 51);
  std::printf("  eval tasks: %d of 64\n", json["passed"].get<int>());
}

}  // namespace
}  // namespace weft::app_test
