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

// Two programs' runs of the same ids, one on each device, are close layer by layer.
TEST(GpuProgram, TracesAndChecks) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const std::string reference = folder / "weft_reference.safetensors";
  const std::string traced = folder / "weft_traced.safetensors";
  const std::string ids = "40,845,299,7,1001,3,3,12";
  const Outcome made = run({"trace", "-m", mini_dir(), "--profile", "exact", "--reference", "--ids", ids, "--out", reference});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome checked =
      run({"check", "-m", mini_dir(), "--profile", "bf16", "--device", "cuda", "--against", reference, "--json"});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  EXPECT_TRUE(parse_json(checked.out, "output").at("passed").get<bool>());

  const Outcome on_gpu = run({"trace", "-m", mini_dir(), "--device", "cuda", "--ids", ids, "--out", traced});
  ASSERT_EQ(on_gpu.code, 0) << on_gpu.err;
  const Outcome on_cpu = run({"check", "-m", mini_dir(), "--profile", "exact", "--against", traced, "--whole-run", "--json"});
  EXPECT_EQ(on_cpu.code, 0) << on_cpu.out << on_cpu.err;
  for (const Json& output : parse_json(on_cpu.out, "output").at("outputs")) EXPECT_LE(output.at("l2"), 1e-5) << output;
}

// Finite, causal, and the same for other chunks.
TEST(GpuProgram, Checks) {
  const Outcome outcome = run({"check", "-m", mini_dir(), "--profile", "exact", "--device", "cuda"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
}

// The closing line says what the plan planned, and no more than that was used.
TEST(GpuProgram, StaysWithinThePlan) {
  const Outcome planned = run({"plan", "-m", mini_dir(), "--device", "cuda", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json stage = parse_json(planned.out, "output").at("stages").at(0);
  std::string prompt;
  for (int i = 0; i < 150; ++i) prompt += "many words ";
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", prompt, "-n", "20", "--device", "cuda", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("GPU memory used of planned: weights "));
  const Json gpu = parse_json(outcome.out, "output").at("weft").at("memory").at("gpu");
  EXPECT_EQ(gpu.at("planned").at("weight_bytes"), stage.at("weight_bytes"));
  EXPECT_EQ(gpu.at("planned").at("state_bytes"), stage.at("state_bytes_reserved"));
  EXPECT_EQ(gpu.at("planned").at("workspace_bytes"), stage.at("workspace_bytes"));
  for (const char* part : {"weight_bytes", "state_bytes", "workspace_bytes"}) {
    EXPECT_GT(gpu.at("used").at(part).get<int64_t>(), 0) << part;
    EXPECT_LE(gpu.at("used").at(part).get<int64_t>(), gpu.at("planned").at(part).get<int64_t>()) << part;
  }
}

Json record_of(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  words.insert(words.end(), {"--device", "cuda", "--repeats", "3", "--json"});
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  EXPECT_FALSE(json.at("commit").get<std::string>().empty());
  EXPECT_THAT(json.at("command").get<std::string>(), HasSubstr("weft bench " + words[1]));
  EXPECT_FALSE(json.at("gpu").get<std::string>().empty());
  EXPECT_EQ(json.at("figures").at(0).at("name"), "copy within the GPU");
  for (size_t i = 1; i < json.at("figures").size(); ++i) {
    const Json& figure = json.at("figures").at(i);
    EXPECT_EQ(figure.at("repeats"), 3) << figure;
    EXPECT_LE(figure.at("spread").at(0), figure.at("median")) << figure;
    EXPECT_GT(figure.at("bytes"), 0.0) << figure;
    EXPECT_GT(figure.at("us"), 0.0) << figure;
    EXPECT_GT(figure.at("share"), 0.0) << figure;
    EXPECT_LT(figure.at("share"), 1.5) << figure;  // a cache cannot have held what was read
    EXPECT_THAT(figure.at("limit").at("name").get<std::string>(), HasSubstr("copy within the GPU"));
  }
  return json;
}

TEST(GpuProgram, Benches) {
  EXPECT_GT(record_of({"ops", "--op", "linear"}).at("figures").size(), 10U);
  const std::string dir = std::filesystem::path(::testing::TempDir()) / "weft_dummy";
  std::filesystem::remove_all(dir);
  // A file of holes: its weights cannot be what is read.
  const Outcome made = run({"synth", "--preset", "k3", "--layers", "2", "--sparse", "-o", dir, "--set", "num_experts=64",
                            "--set", "vocab_size=4096"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Json decode = record_of({"decode", "-m", dir, "--load", "dummy", "--tokens", "4"});
  EXPECT_EQ(decode.at("layers"), 2);
  EXPECT_GT(decode.at("memory").at("expert_bytes"), 0);
  EXPECT_EQ(decode.at("figures").at(1).at("bytes").get<double>(), decode.at("bytes_per_token").get<double>());
  std::filesystem::remove_all(dir);
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
