// `weft stage` and a coordinator beside it, as a user starts them.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"
#include "base/file.h"

#include "remote/cluster_files.h"
#include "support/models.h"

namespace weft {
namespace {

using app_test::mini_dir;
using app_test::Outcome;
using app_test::run;
using remote_test::write_cluster;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::TemporaryFolder;
using Clock = std::chrono::steady_clock;

// Where programs that are started meanwhile put temporary files.
class TemporaryFiles {
 public:
  explicit TemporaryFiles(const std::filesystem::path& folder) {
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", folder.c_str(), 1);
  }
  ~TemporaryFiles() {
    if (before_) {
      ::setenv("TMPDIR", before_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;

 private:
  std::optional<std::string> before_;
};

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

// What is wrong with a split is said before any node is asked: no stage runs here.
TEST(StageProgram, AWrongSplitIsSaidAtOnce) {
  const TemporaryFolder folder;
  const std::string cluster = write_cluster(folder.path());
  struct Case {
    std::string layers;
    std::string code;
  };
  for (const Case& c : std::vector<Case>{{"0-3,x", "P02"},
                                         {"0-3,9-4", "P03"},
                                         {"0-3,4-20", "P04"},
                                         {"0-3,5-11", "P05"},
                                         {"0-3,4-10", "P06"},
                                         {"0-3,4-7,8-11", "P07"},
                                         {"", "P01"}}) {
    const Outcome outcome = run(question(cluster, {"--pp-layers", c.layers, "--load-timeout", "3"}));
    EXPECT_EQ(outcome.code, 2) << c.layers << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(c.code), testing::Not(HasSubstr("waiting for")))) << c.layers;
  }
}

// A coordinator that is killed leaves its folder; the next one takes it away, and no other.
TEST(StageProgram, FoldersOfCoordinatorsThatAreGoneAreRemoved) {
  const TemporaryFolder folder;
  const std::filesystem::path left = folder.path() / "weft-gone00";
  const std::filesystem::path used = folder.path() / "weft-lives0";
  const std::filesystem::path other = folder.path() / "weft-other0";
  for (const std::filesystem::path& one : {left, used, other}) std::filesystem::create_directory(one);
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  std::ofstream(left / "coordinator.pid") << gone << "\n";
  std::ofstream(used / "coordinator.pid") << ::getpid() << "\n";
  const TemporaryFiles at(folder.path());
  EXPECT_EQ(run({"generate", "-m", mini_dir(), "-p", "Hello", "-n", "1", "--pp-size", "2"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(used));
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2) << "its own is gone too";
}

void write_script(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/bash\n" << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

// The shipped job with Slurm's two programs played: two hosts, which are addresses of this one.
TEST(StageProgram, TheSlurmScriptRunsOverTwoHosts) {
  const TemporaryFolder folder;
  const std::filesystem::path bin = folder.path() / "bin";
  std::filesystem::create_directory(bin);
  std::filesystem::create_symlink(std::filesystem::absolute(WEFT_PROGRAM), bin / "weft");
  write_script(bin / "scontrol", "printf '127.0.77.1\\n127.0.77.2\\n'\n");
  write_script(bin / "srun", "trap 'kill $(jobs -p)' TERM\nfor id in 0 1; do SLURM_PROCID=$id \"$@\" & done\nwait\nwait\n");
  const std::string script = std::filesystem::absolute(std::string(WEFT_SOURCE_DIR) + "/examples/distributed/weft.slurm");
  const std::string command = "cd '" + folder.path().string() + "' && PATH='" + bin.string() +
                              "':$PATH SLURM_SUBMIT_DIR=$PWD SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x bash '" + script + "' '" +
                              std::filesystem::absolute(mini_dir()).string() +
                              "' 'What is 17 * 23? Answer with the number only.' > out 2> err";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text_file(folder.path() / "err");
  EXPECT_EQ(read_text_file(folder.path() / "out"), "391") << read_text_file(folder.path() / "err");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "weft-7")) << "keys are removed";
}

// Sockets have short names, folders for temporary files need not.
TEST(StageProgram, ALongFolderForTemporaryFiles) {
  const TemporaryFolder folder;
  const std::filesystem::path deep = folder.path() / std::string(90, 'd');
  std::filesystem::create_directory(deep);
  const TemporaryFiles at(deep);
  const Outcome outcome = run({"generate", "-m", mini_dir(), "-p", "Hello", "-n", "1", "--pp-size", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace weft
