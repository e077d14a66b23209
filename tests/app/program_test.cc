// Flags, exit codes, and the subcommands that do not generate.
#include "program.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>

#include "app/exit_codes.h"
#include "base/file.h"
#include "base/json.h"
#include "pipeline/trace.h"

#include "support/models.h"

namespace weft::app_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::filesystem::path scratch(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / ("weft_app_" + name);
  std::filesystem::remove_all(path);
  return path;
}

TEST(Program, EverySubcommandTeachesWithAnExample) {
  for (const std::string command : {"generate", "chat", "inspect", "check", "plan", "trace", "synth", "truncate", "text encode",
                                    "text decode", "text render", "text parse", "eval tasks", "eval ppl"}) {
    std::vector<std::string> arguments;
    const size_t space = command.find(' ');
    arguments.push_back(command.substr(0, space));
    if (space != std::string::npos) arguments.push_back(command.substr(space + 1));
    arguments.emplace_back("--help");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Example")) << command;
    EXPECT_THAT(outcome.out, HasSubstr("weft " + command)) << command;
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(Program, HelpIsTheHelpOfTheFlag) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"eval", "tasks"}, {"text", "decode"}, {"eval"}, {"text"}, {"generate"}, {"help"}}) {
    std::vector<std::string> asked = command;
    asked.insert(asked.begin(), "help");
    std::vector<std::string> flagged = command;
    flagged.emplace_back("--help");
    const Outcome outcome = run(asked);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.out, run(flagged).out) << fmt::format("{}", fmt::join(command, " "));
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("Usage: weft {}", fmt::join(command, " "))));
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("weft {} ", fmt::join(command, " "))));
    EXPECT_THAT(outcome.out, Not(HasSubstr("Exactly 1")));
  }
}

TEST(Program, HelpThatNobodyCanReadIsAFailure) {
  const std::string command = std::string(WEFT_PROGRAM) + " --help >/dev/full 2>/dev/null";
  EXPECT_NE(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c): a shell redirects as users do
}

TEST(Program, ExitCodesAreListed) {
  const Outcome outcome = run({"help", "exit-codes"});
  EXPECT_EQ(outcome.code, 0);
  for (const ExitCodeText& entry : kExitCodes) {
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("{:>4}  {}\n", static_cast<int>(entry.code), entry.meaning)));
  }
  std::ifstream file(std::string(WEFT_SOURCE_DIR) + "/docs/cli.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const ExitCodeText& entry : kExitCodes) {
    EXPECT_THAT(page, HasSubstr(fmt::format("| {} | {} |", static_cast<int>(entry.code), entry.meaning)));
  }
  EXPECT_EQ(run({"help", "nothing"}).code, kExitUsage);
}

// Whether the build lacks CUDA or the machine lacks a GPU.
TEST(Program, SaysWhatDeviceCudaLacks) {
  if (std::filesystem::exists("/dev/nvidiactl")) return;  // tests/gpu runs it then
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "x", "--device", "cuda"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("error: [cuda] wanted a "));
  EXPECT_EQ(outcome.out, "");
}

TEST(Program, WrongFlagsAreUsage) {
  const std::string mini = mini_dir();
  const std::string bad_json = scratch("bad.json");
  std::ofstream(bad_json) << "[";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"frobnicate"}, "frobnicate"},
      {{"genrate"}, "generate"},
      {{"generate", "-m", mini, "-p", "x", "--temprature", "0"}, "--temperature"},
      {{"generate", "-m", mini, "-p", "x", "--prefil-chunk", "3"}, "--prefill-chunk"},
      {{"generate", "-p", "x"}, "--model"},
      {{"generate", "-m", mini}, "--messages"},
      {{"generate", "-m", mini, "-p", "x", "--colour", "red"}, "--colour"},
      {{"generate", "-m", mini, "-p", "x", "--profile", "fast"}, "--profile"},
      {{"generate", "-m", mini, "-p", "x", "--temperature", "hot"}, "--temperature"},
      {{"generate", "-m", mini, "-p", "x", "--temperature", "3"}, "temperature"},
      {{"generate", "-m", mini, "-p", "x", "-n", "0"}, "--max-tokens"},
      {{"generate", "-m", mini, "-p", "x", "--threads", "0"}, "--threads"},
      {{"generate", "-m", mini, "-p", "x", "--prefill-chunk", "0"}, "--prefill-chunk"},
      {{"generate", "-m", mini, "-p", "x", "--pp-layers", "0-3,5-11"}, "P05"},
      {{"generate", "-m", mini, "-p", "x", "--pp-layers", "0-3,4-11", "--pp-size", "3"}, "P07"},
      {{"generate", "-m", mini, "-p", "x", "--thinking", "maybe"}, "--thinking"},
      {{"generate", "-m", mini, "-p", "x", "--tools", "/nonexistent.json"}, "/nonexistent.json"},
      {{"generate", "-m", mini, "-p", "x", "--device", "tpu"}, "--device"},
      {{"generate", "-m", mini, "-p", "x", "--device", "cuda", "--reference"}, "--reference"},
      {{"generate", "-m", mini, "-p", "x", "--load", "dummy"}, "--device cuda"},
      {{"generate", "-m", mini, "--messages", "/dev/null"}, "/dev/null"},
      {{"generate", "-m", "", "-p", "x"}, "--model: wanted a value"},
      {{"text", "encode", "-m", ""}, "--model: wanted a value"},
      {{"generate", "-m", mini, "--messages", ""}, "--messages: wanted a value"},
      {{"generate", "-m", mini, "--messages", "-", "--tools", "-"}, "--messages and --tools"},
      {{"chat", "-m", mini, "--tools", "-"}, "--tools"},
      {{"generate", "-m", mini, "-p", "x", "--tools", bad_json}, "bad.json] JSON at byte 1"},
      {{"generate", "-m", mini, "-p", "\xff"}, "[--prompt] wanted UTF-8, found byte 0xff at offset 0"},
      {{"generate", "-m", mini, "-p", "x", "--system", "a\xff"}, "[--system] wanted UTF-8, found byte 0xff at offset 1"},
      {{"generate", "-m", mini, "-p", "x", "--profile", "\x1b\xff"}, "\\x1b\\xff"},
      {{"plan", "-m", mini, "--bandwidth", "0"}, "wanted a number above 0, found '0'"},
      {{"plan", "-m", mini, "--bandwidth", "fast"}, "wanted a number above 0, found 'fast'"},
      {{"trace", "-m", "/nonexistent", "--ids", "1", "--out", "/nodir/x"},
       "[/nodir/x] wanted a folder to write it into, found nothing at '/nodir'"},
      {{"trace", "-m", "/nonexistent", "--ids", "1", "--out", "/tmp"}, "[/tmp] wanted a file to write, found a folder"},
      {{"trace", "-m", mini, "--ids", "1,99999", "--out", scratch("trace")}, "99999"},
      {{"trace", "-m", mini, "--ids", "3,,5", "--out", scratch("trace")}, "item 2"},
      {{"trace", "-m", mini, "--ids", "3,", "--out", scratch("trace")}, "item 2"},
      {{"trace", "-m", mini, "--ids", "", "--out", scratch("trace")}, "--ids"},
      {{"generate", "-m", mini, "-p", "x", "--seed", "-1"}, "18446744073709551615"},
      {{"generate", "-m", mini, "-p", "x", "--seed", "18446744073709551616"}, "--seed"},
      {{"generate", "-m", mini, "-p", "x", "--temperature", ""}, "--temperature"},
      {{"generate", "-m", mini, "-p", "x", "--pp-layers", ""}, "P01"},
      {{"plan", "-m", mini, "--pp-layers", ""}, "P01"},
      {{"plan", "-m", mini, "--pp-layers", "0-1 1"}, "P02"},
      {{"generate", "-m", mini, "-p", "x", "--heartbeat-interval", "1e300"}, "up to 1000000, found '1e300'"},
      {{"generate", "-m", mini, "-p", "x", "--time-limit", "0"}, "wanted seconds above 0"},
      {{"generate", "-m", mini, "-p", "x", "--colocate-stage0"}, "--distributed-config"},
      {{"check", "-m", mini, "--tokens", "4097"}, "4096"},
      {{"synth", "--set", "num_experts=16384", "--set", "moe_intermediate_size=61440", "-o", scratch("full")},
       "of free space, found"},
      {{"eval", "tasks", "/dev/null", "-m", mini}, "/dev/null"},
      {{"eval", "ppl", "-m", mini, "--text", "-"}, "at least 2 tokens"},
  };
  for (const auto& [arguments, part] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << part << ": " << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("error: [")) << part;
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << part;
    EXPECT_TRUE(std::ranges::none_of(outcome.err, [](char c) {
      return c != '\n' && std::iscntrl(static_cast<unsigned char>(c)) != 0;
    })) << part;
    EXPECT_EQ(outcome.out, "") << part;
  }
}

TEST(Program, AWrongModelIsExitFour) {
  const std::filesystem::path empty = scratch("empty");
  std::filesystem::create_directories(empty);
  for (const std::filesystem::path& folder : {std::filesystem::path("/nonexistent"), empty}) {
    for (const std::string command : {"generate", "check", "inspect", "plan"}) {
      std::vector<std::string> arguments = {command, "-m", folder};
      if (command == "generate") arguments.insert(arguments.end(), {"-p", "x"});
      const Outcome outcome = run(arguments);
      EXPECT_EQ(outcome.code, kExitModel) << command << ": " << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(folder.string())) << command;
    }
  }
  std::ofstream(empty / "config.json") << R"({"model_type": "other"})";
  EXPECT_EQ(run({"generate", "-m", empty, "-p", "x"}).code, kExitModel);
  std::ofstream(empty / "config.json", std::ios::trunc).flush();
  const Outcome nothing = run({"plan", "-m", empty});
  EXPECT_EQ(nothing.code, kExitModel);
  EXPECT_THAT(nothing.err, HasSubstr("config.json] wanted JSON, found at byte 0: unexpected end of input"));
}

TEST(Program, WeightsThatAreNoNumbersAreTheCheckpointsFault) {
  const std::filesystem::path folder = scratch("nan");
  std::filesystem::copy(mini_dir(), folder, std::filesystem::copy_options::recursive);
  const std::string name = "language_model.model.embed_tokens.weight";
  const Json index = read_json_file(folder / "model.safetensors.index.json");
  std::fstream file(folder / index["weight_map"][name].get<std::string>(), std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_size = 0;
  file.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
  std::string header(header_size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  const Json offsets = parse_json(header, "header")[name]["data_offsets"];
  file.seekp(static_cast<std::streamoff>(8 + header_size + offsets[0].get<uint64_t>()));
  // All bits set is NaN in every format of floats that embeddings come in.
  file << std::string(offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>(), '\xff');
  file.close();
  const Outcome outcome = run({"generate", "-m", folder, "-p", "Hi", "-n", "1"});
  EXPECT_EQ(outcome.code, kExitModel) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("layer 0: [attention] position 0, element 0: wanted a finite value, found"));
  std::filesystem::remove_all(folder);
}

TEST(Text, RoundTrip) {
  const std::string text = "Grüße, 世界! <|open|> 🙂";
  RunOptions options;
  options.input = Json{{"text", text}}.dump();
  const Outcome encoded = run({"text", "encode", "-m", mini_dir()}, options);
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  options.input = encoded.out;
  const Outcome decoded = run({"text", "decode", "-m", mini_dir()}, options);
  ASSERT_EQ(decoded.code, 0) << decoded.err;
  EXPECT_EQ(parse_json(decoded.out, "output")["text"], text);
}

TEST(Text, RenderAndParse) {
  RunOptions options;
  options.input = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  const Json rendered = parse_json(run({"text", "render", "-m", mini_dir()}, options).out, "output");
  EXPECT_EQ(rendered["start"], "think");
  EXPECT_THAT(rendered["text"].get<std::string>(), HasSubstr("<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|>"));
  options.input = R"({"start": "start", "text": "<|open|>response<|sep|>391<|close|>response<|sep|><|close|>message<|sep|>"})";
  const Json parsed = parse_json(run({"text", "parse", "-m", mini_dir()}, options).out, "output");
  EXPECT_EQ(parsed["content"], "391");
  options.input = "{";
  const Outcome bad = run({"text", "parse", "-m", mini_dir()}, options);
  EXPECT_EQ(bad.code, kExitUsage);
}

TEST(Text, AQwenFolderIsReadByTheSameCommands) {
  const std::string dir = WEFT_FIXTURES "/tokenizer-qwen";
  RunOptions options;
  options.input = R"({"text": "Hello world"})";
  EXPECT_EQ(parse_json(run({"text", "encode", "-m", dir}, options).out, "output")["ids"], (Json{9707, 1879}));
  options.input = R"({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"})";
  const Json rendered = parse_json(run({"text", "render", "-m", dir}, options).out, "output");
  EXPECT_EQ(rendered["text"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_EQ(rendered["notes"].size(), 2U);
  EXPECT_THAT(rendered["notes"][0].get<std::string>(), HasSubstr("chat template: both"));
  EXPECT_THAT(rendered["notes"][1].get<std::string>(), HasSubstr("effort"));
  options.input = R"({"start": "think", "text": "hm\n</think>\n\n391<|im_end|>"})";
  const Json parsed = parse_json(run({"text", "parse", "-m", dir}, options).out, "output");
  EXPECT_EQ(parsed["reasoning_content"], "hm");
  EXPECT_EQ(parsed["content"], "391");
}

TEST(Checkpoints, InspectCheckPlan) {
  const Json inspected = parse_json(run({"inspect", "-m", mini_dir(), "--verify", "--json"}).out, "output");
  EXPECT_TRUE(inspected.is_object());
  const Outcome checked = run({"check", "-m", mini_dir(), "--json"});
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(parse_json(checked.out, "output")["passed"], true);
  const Outcome planned = run({"plan", "-m", mini_dir(), "--pp-size", "3", "--json"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(parse_json(planned.out, "output")["stages"].size(), 3U);
  const Outcome too_small = run({"plan", "-m", mini_dir(), "--node-memory", "4000000"});
  EXPECT_EQ(too_small.code, kExitPlan);
  EXPECT_THAT(too_small.err, AllOf(HasSubstr("P09"), HasSubstr("; total shortfall "), Not(HasSubstr("\\x0a"))));
  EXPECT_EQ(run({"plan", "-m", mini_dir(), "--node-memory", "lots"}).code, kExitUsage);
}

TEST(Checkpoints, ALimitOfMemoryIsNoneOfTheGpu) {
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "Hi", "--device", "cuda", "--memory", "1GiB"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("[--memory] wanted --device cpu"));
}

TEST(Checkpoints, AProbeOfTwoTokensIsCutInTwo) {
  const Outcome outcome = run({"check", "-m", mini_dir(), "--tokens", "2"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("chunks of 1 token against the whole probe"));
}

TEST(Checkpoints, ThePlanReservesNoMoreThanTheContext) {
  const std::string plan = run({"plan", "-m", mini_dir(), "--json"}).out;
  EXPECT_EQ(plan, run({"plan", "-m", mini_dir(), "--tokens", "4096", "--json"}).out);
  EXPECT_NE(plan, run({"plan", "-m", mini_dir(), "--tokens", "32768", "--json"}).out);
}

// The arguments behind "weft synth" in its help that write a small model.
std::vector<std::string> small_model_of_help() {
  const std::string help = run({"synth", "--help"}).out;
  std::istringstream words(help.substr(help.find("weft synth --layers")));
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) {
    if (word == "Without") break;
    if (word != "weft" && word != "\\") arguments.push_back(word);
  }
  return arguments;
}

TEST(Checkpoints, TheSmallModelOfTheHelpIsSmallAndWorks) {
  std::vector<std::string> arguments = small_model_of_help();
  const std::filesystem::path out = scratch("small");
  *(std::ranges::find(arguments, "-o") + 1) = out;
  const Outcome made = run(arguments);
  ASSERT_EQ(made.code, 0) << made.err;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out)) bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_LT(bytes, 2'000'000);
  EXPECT_EQ(run({"check", "-m", out}).code, 0);
}

TEST(Checkpoints, TruncateAndSynthMakeWorkingModels) {
  const std::filesystem::path cut = scratch("cut");
  const Outcome truncated = run({"truncate", "-m", mini_dir(), "--layers", "4", "-o", cut});
  ASSERT_EQ(truncated.code, 0) << truncated.err;
  EXPECT_EQ(run({"check", "-m", cut}).code, 0);
  EXPECT_EQ(run({"truncate", "-m", mini_dir(), "--layers", "4", "-o", cut}).code, kExitUsage) << "the folder is taken";
  const std::filesystem::path sparse = scratch("sparse");
  const Outcome made = run({"synth", "--preset", "k3", "--layers", "4", "--sparse", "-o", sparse, "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(run({"inspect", "-m", sparse}).code, 0);
}

// An index that names wrong files is refused, unless the headers are what counts.
TEST(Checkpoints, AStaleIndexIsRebuiltOnlyWhereThatIsAsked) {
  const std::filesystem::path stale = scratch("stale");
  std::filesystem::create_directories(stale);
  const std::filesystem::path whole = testing_support::fixture("tiny-k3-8l");
  for (const auto& entry : std::filesystem::directory_iterator(whole)) {
    if (entry.path().filename().string().starts_with("model-") || entry.path().filename() == "config.json")
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), stale / entry.path().filename());
  }
  Json index = read_json_file(whole / "model.safetensors.index.json");
  for (auto& [tensor, file] : index["weight_map"].items()) file = "model-00001-of-000003.safetensors";
  write_file_atomic(stale / "model.safetensors.index.json", index.dump());
  for (const char* const command : {"plan", "check"}) {
    const Outcome refused = run({command, "-m", stale.string()});
    EXPECT_EQ(refused.code, kExitModel) << command;
    EXPECT_THAT(refused.err, HasSubstr("the index does not match the files"));
    const Outcome rebuilt = run({command, "-m", stale.string(), "--rebuild-index"});
    EXPECT_EQ(rebuilt.code, kExitSuccess) << command << rebuilt.err;
  }
}

TEST(Checkpoints, ADryRunIsThePlan) {
  const Outcome outcome =
      run({"generate", "-m", mini_dir(), "-p", "x", "--pp-size", "2", "--pp-balance", "compute", "--dry-run"});
  EXPECT_EQ(outcome.code, kExitSuccess) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("12 layers in 2 stages"), HasSubstr("balance compute")));
  const Outcome small = run({"generate", "-m", mini_dir(), "-p", "x", "--pp-size", "2", "--memory", "1MiB", "--dry-run"});
  EXPECT_EQ(small.code, 3) << small.err;
  EXPECT_EQ(small.out, "");
}

TEST(Checkpoints, AnInterruptedSynthLeavesNothing) {
  const std::filesystem::path out = scratch("interrupted");
  RunOptions options;
  options.interrupt_when = [&] { return std::filesystem::exists(out) && !std::filesystem::is_empty(out); };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    options.signal = signal;
    const Outcome outcome = run({"synth", "--layers", "2", "--set", "num_experts=64", "-o", out}, options);
    EXPECT_EQ(outcome.code, kExitInterrupted) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("interrupted: "));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST(Checkpoints, TraceIsTheSameHoweverItIsComputed) {
  const auto traced = [](const std::string& name, std::vector<std::string> more) {
    const std::filesystem::path file = scratch(name);
    std::vector<std::string> arguments = {"trace", "-m", mini_dir(), "--ids", "3,14,15,92,65,35", "--out", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::ifstream stream(file, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  const std::string whole = traced("a.safetensors", {});
  EXPECT_GT(whole.size(), 6U * 6144U * 4U);
  EXPECT_EQ(traced("b.safetensors", {"--pp-layers", "0-3,4-7,8-11", "--prefill-chunk", "2", "--threads", "1"}), whole);
}

TEST(Eval, Ppl) {
  const std::filesystem::path file = scratch("ids.json");
  std::ofstream(file) << "[40, 845, 299, 1199, 220, 16]";
  const Outcome outcome = run({"eval", "ppl", "-m", mini_dir(), "--ids", file, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["tokens"], 6);
  EXPECT_EQ(json["scored"], 5);
  EXPECT_EQ(run({"eval", "ppl", "-m", mini_dir(), "--ids", file, "--window", "100000"}).code, kExitUsage);
}

TEST(Program, CheckComparesWithATrace) {
  const std::string reference = scratch("reference.safetensors").string();
  const std::vector<std::string> trace = {"trace", "-m", mini_dir(), "--ids", "3,14,15,92,65,35"};
  const auto traced = [&](const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> arguments = trace;
    arguments.insert(arguments.end(), {"--out", file});
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(run(arguments).code, 0);
  };
  traced(reference, {"--reference"});
  const std::vector<std::string> check = {"check", "-m", mini_dir(), "--profile", "bf16", "--against"};
  const auto compared = [&](const std::string& file, std::vector<std::string> more) {
    std::vector<std::string> arguments = check;
    arguments.push_back(file);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const Outcome text = compared(reference, {});
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_THAT(text.out, HasSubstr("\nok    layer 11  "));
  EXPECT_THAT(text.out, HasSubstr("\npassed: 6 tokens, limits L2 0.01, mean abs 0.5%, margin of a flip 0.01; "));
  const Json json = Json::parse(compared(reference, {"--json"}).out);
  EXPECT_TRUE(json.at("passed").get<bool>());
  EXPECT_EQ(json.at("tokens"), 6);
  EXPECT_EQ(json.at("outputs").size(), 14U);  // embedding, twelve layers, logits
  EXPECT_EQ(json.at("outputs").at(12).at("name"), "layer 11");
  EXPECT_GT(json.at("outputs").at(12).at("l2").get<double>(), 0.0);

  // A whole run of the same numbers is the reference, and so says the comparison.
  const std::string same = scratch("same.safetensors").string();
  traced(same, {"--profile", "bf16"});
  EXPECT_THAT(compared(same, {"--whole-run"}).out, HasSubstr("ok    logits       0.00e+00"));

  // With the reference's experts it is another run.
  const std::string forced = scratch("forced.safetensors").string();
  traced(forced, {"--routing", reference, "--profile", "bf16"});
  EXPECT_THAT(compared(forced, {"--whole-run"}).out, Not(HasSubstr("ok    logits       0.00e+00")));

  // A reference that is not what this model computes.
  Trace wrong = read_trace(reference);
  for (float& value : wrong.hidden.as<float>().last(100)) value *= 1.1F;
  wrong.mean_abs = Tensor::zeros(DType::f32, {13});
  write_trace(forced, wrong, false);
  const Outcome failed = compared(forced, {});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.out, HasSubstr("FAIL  layer 11"));
  EXPECT_THAT(failed.out, HasSubstr("\nfailed: "));
  EXPECT_EQ(compared(mini_dir() + "/config.json", {}).code, 2);
  EXPECT_EQ(compared(scratch("absent").string(), {}).code, 2);
  EXPECT_EQ(compared(reference, {"--tokens", "5"}).code, 2);
}

}  // namespace
}  // namespace weft::app_test
