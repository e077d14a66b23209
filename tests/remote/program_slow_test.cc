// `weft generate` over worker processes of this host, as a user runs it.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"
#include "base/json.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;
using app_test::Outcome;
using app_test::run;
using testing::AllOf;
using testing::HasSubstr;

const char* const kQuestion = "What is 17 * 23? Answer with the number only.";

// The model under a name of this process alone, by which its workers are found among those of other tests.
const std::string& own_dir() {
  static const TemporaryFolder folder;
  static const std::string dir = [] {
    const std::filesystem::path link = folder.path() / "k3-mini";
    std::filesystem::create_directory_symlink(std::filesystem::absolute(k3_mini()), link);
    return link.string();
  }();
  return dir;
}

std::vector<std::string> question(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"generate", "-m", own_dir(), "-p", kQuestion, "--temperature", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Some seconds of work: a prompt that is read token by token.
std::vector<std::string> long_request(const std::vector<std::string>& more = {}) {
  std::string text;
  for (int i = 0; i < 900; ++i) text += "word ";
  std::vector<std::string> words = {"generate", "-m", own_dir(), "-p", text, "--prefill-chunk", "1", "--pp-size", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Processes whose command line has `word`, by their numbers.
std::vector<pid_t> processes_with(const std::string& word) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::ranges::replace(line, '\0', ' ');
    if (line.find(word) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

// Workers of the coordinator `of`.
std::vector<pid_t> workers_of(pid_t of) {
  std::vector<pid_t> found;
  for (const pid_t pid : processes_with("weft stage ")) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("PPid:", 0) == 0 && std::stoi(line.substr(5)) == of) found.push_back(pid);
    }
  }
  return found;
}

// K3: the published acceptance command, and the answers of one process.
TEST(DistributedProgram, K3AnswersAsOneProcess) {
  for (const std::vector<std::string>& split :
       std::vector<std::vector<std::string>>{{"--pp-size", "2"},
                                             {"--pp-size", "2", "--pp-layers", "0-3,4-11"},
                                             {"--pp-layers", "0-3,4-7,8-11"},
                                             {"--pp-size", "2", "--activation-compress", "lz4"},
                                             {"--pp-size", "4"}}) {
    const Outcome outcome = run(question(split));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "391");
    EXPECT_THAT(outcome.err, HasSubstr("loaded"));
  }
  EXPECT_THAT(processes_with("weft stage -m " + own_dir()), testing::IsEmpty());
}

TEST(DistributedProgram, SampledAnswersAreThoseOfOneProcess) {
  const std::vector<std::string> words = {"generate", "-m", own_dir(), "-p", "Hello", "--seed", "11", "-n", "40"};
  const Outcome one = run(words);
  std::vector<std::string> several = words;
  several.insert(several.end(), {"--pp-size", "3"});
  const Outcome three = run(several);
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(three.code, 0) << three.err;
  EXPECT_EQ(three.out, one.out);
}

TEST(DistributedProgram, ErrorsBeforeAnythingStarts) {
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string error;
  };
  for (const Case& c : std::vector<Case>{
           {{"--pp-size", "13"}, 3, "P10"},
           {{"--pp-layers", "0-3,5-11"}, 2, "P05"},
           {{"--pp-layers", "0-3,4-11", "--pp-size", "3"}, 2, "P07"},
           {{"--distributed-config", "/nowhere.toml"}, 2, "/nowhere.toml"},
       }) {
    const Outcome outcome = run(question(c.words));
    EXPECT_EQ(outcome.code, c.code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(c.error));
    EXPECT_EQ(outcome.out, "");
  }
}

// A worker that is killed in the middle of an answer: the text so far, the stage and the cause, exit code 6, nothing left
// behind.
TEST(DistributedProgram, F2AStageIsKilledInTheMiddleOfAnAnswer) {
  app_test::RunOptions options;
  options.interrupt_at = "loaded";
  options.act = [](pid_t coordinator) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const std::vector<pid_t> workers = workers_of(coordinator);
    ASSERT_EQ(workers.size(), 2U);
    ::kill(workers.back(), SIGKILL);
  };
  const Outcome outcome = run(long_request({"--seed", "987654321", "--json"}), options);
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  const Json json = parse_json(outcome.out, "output");
  EXPECT_EQ(json["finish_reason"], nullptr);
  EXPECT_EQ(json["error"]["kind"], "stage_lost");
  EXPECT_EQ(json["error"]["node"], fmt::format("stage-{}", json["error"]["stage"].get<int>()));
  EXPECT_THAT(outcome.err, HasSubstr(json["error"]["message"].get<std::string>()));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: "), HasSubstr("stage "), HasSubstr("(node stage-")));
  EXPECT_THAT(processes_with("weft stage -m " + own_dir()), testing::IsEmpty());
}

TEST(DistributedProgram, CtrlCEndsTheWorkersToo) {
  app_test::RunOptions options;
  options.interrupt_at = "loaded";
  const Outcome outcome = run(long_request(), options);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(processes_with("weft stage -m " + own_dir()), testing::IsEmpty());
}

// A worker whose coordinator is killed ends by itself.
TEST(DistributedProgram, WorkersOfAKilledCoordinatorEnd) {
  app_test::RunOptions options;
  options.interrupt_at = "loaded";
  options.signal = SIGKILL;
  const Outcome outcome = run(long_request(), options);
  EXPECT_EQ(outcome.code, 256 + SIGKILL);
  for (int i = 0; i < 300 && !processes_with("weft stage -m " + own_dir()).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_THAT(processes_with("weft stage -m " + own_dir()), testing::IsEmpty());
}

// D14, in part: the trace has each step of each stage once.
TEST(DistributedProgram, D14TheTraceIsJson) {
  TemporaryFolder folder;
  const std::string file = folder.path() / "trace.json";
  const Outcome outcome = run(question({"--pp-size", "2", "--debug-pp-trace", file}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream stream(file);
  const Json trace = Json::parse(stream);
  std::map<std::string, int> spans;
  for (const Json& event : trace) {
    if (event.at("ph") == "X") ++spans[fmt::format("{} {}", event.at("pid").get<int>(), event.at("name").get<std::string>())];
  }
  EXPECT_GT(spans["1 compute"], 70);
  EXPECT_NEAR(spans["1 compute"], spans["2 compute"], 1);  // the answer ends with the last stage's last step
  EXPECT_GT(spans["0 step"], 70);
}

}  // namespace
}  // namespace weft
