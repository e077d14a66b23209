// `weft stage` and a coordinator beside it, as a user starts them.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"

#include "support/models.h"

namespace weft {
namespace {

using app_test::mini_dir;
using app_test::Outcome;
using app_test::run;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::TemporaryFolder;
using Clock = std::chrono::steady_clock;

// Two stages at Unix sockets.
std::string write_cluster(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "cluster.toml";
  std::ofstream out(file);
  out << "[cluster]\nname = \"test\"\npipeline_parallel_size = 2\n"
      << "[[nodes]]\nid = \"coordinator\"\naddress = \"unix:" << (folder / "c").string() << "\"\nrole = \"hybrid\"\n";
  for (int s = 0; s < 2; ++s) {
    out << "[[nodes]]\nid = \"stage-" << s << "\"\naddress = \"unix:" << (folder / "s").string() << s
        << "\"\nrole = \"pipeline_stage\"\nstage = " << s << "\nmodel_dir = \"" << mini_dir() << "\"\n";
  }
  return file;
}

std::vector<std::string> question(const std::string& cluster, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"generate",
                                    "-m",
                                    mini_dir(),
                                    "-p",
                                    "What is 17 * 23? Answer with the number only.",
                                    "--temperature",
                                    "0",
                                    "--distributed-config",
                                    cluster};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(StageProgram, Stage0InTheCoordinatorsProcess) {
  const TemporaryFolder folder;
  const std::string cluster = write_cluster(folder.path());
  std::atomic<bool> over = false;
  Outcome stage;
  std::thread other([&] {
    stage = run({"stage", "--distributed-config", cluster, "--node-id", "stage-1"},
                {.interrupt_when = [&] { return over.load(); }});
  });
  const Outcome outcome = run(question(cluster, {"--colocate-stage0"}));
  over = true;
  other.join();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "391");
  EXPECT_EQ(stage.code, 0) << stage.err;
}

// Command lines of other programs start every node with the same subcommand.
TEST(StageProgram, ServeIsAStageWhereItsNodeIsOne) {
  const TemporaryFolder folder;
  const std::string cluster = write_cluster(folder.path());
  const Outcome outcome = run({"serve", "-m", mini_dir(), "--distributed-config", cluster, "--node-id", "stage-1"},
                              {.interrupt_at = "stage-1 (stage 1) listens on"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Outcome nobody = run({"serve", "-m", mini_dir(), "--distributed-config", cluster, "--node-id", "stage-7"});
  EXPECT_EQ(nobody.code, 2) << nobody.err;
  EXPECT_THAT(nobody.err, HasSubstr("stage-7"));
}

TEST(StageProgram, CtrlCEndsTheWaitForStages) {
  const TemporaryFolder folder;
  const std::string cluster = write_cluster(folder.path());
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto begin = Clock::now();
    const Outcome outcome = run(question(cluster), {.interrupt_at = "waiting for", .signal = signal});
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("interrupted: "));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60)) << "the load timeout is 1800 s";
  }
}

TEST(StageProgram, AModelElsewhereThanBelowTheRootIsRefused) {
  const TemporaryFolder folder;
  const std::string cluster = write_cluster(folder.path());
  const std::vector<std::string> words = {"stage", "--distributed-config", cluster, "--node-id", "stage-1", "--model-root"};
  const auto below = [&](const std::filesystem::path& root) {
    std::vector<std::string> all = words;
    all.push_back(root);
    return run(all, {.interrupt_at = "listens on"});
  };
  const Outcome refused = below(folder.path());
  EXPECT_EQ(refused.code, 9) << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--model-root"), HasSubstr(mini_dir())));
  EXPECT_EQ(below(std::filesystem::path(mini_dir()).parent_path() / "k3").code, 9) << "a name is no beginning of another";
  for (const std::string& root : {mini_dir(), mini_dir() + "/", mini_dir() + "/..", std::string("/")}) {
    const Outcome outcome = below(root);
    EXPECT_EQ(outcome.code, 0) << root << outcome.err;
  }
}

// Sockets have short names, folders for temporary files need not.
TEST(StageProgram, ALongFolderForTemporaryFiles) {
  const TemporaryFolder folder;
  const std::filesystem::path deep = folder.path() / std::string(90, 'd');
  std::filesystem::create_directory(deep);
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", deep.c_str(), 1);
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "Hello", "-n", "1", "--pp-size", "2"});
  if (before == nullptr) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", kept.c_str(), 1);
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace weft
