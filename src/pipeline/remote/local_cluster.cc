#include "pipeline/remote/local_cluster.h"

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/guard.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "local stages";
constexpr const char* kOwner = "coordinator.pid";  // in the folder
constexpr double kGrace = 5.0;                     // seconds
constexpr size_t kLongestFolder = 107 - std::string_view("/weft-XXXXXX/stage-1048576").size();

// The last line that a worker wrote.
std::string last_words(const std::filesystem::path& log) {
  std::ifstream file(log);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it said nothing" : last;
}

// Folders of coordinators that ended without removing theirs (SIGKILL, a closed pipe).
void remove_left_behind(const std::filesystem::path& where) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(where, ignored)) {
    if (!entry.path().filename().string().starts_with("weft-")) continue;
    struct stat status{};
    if (::lstat(entry.path().c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) continue;
    std::ifstream file(entry.path() / kOwner);
    pid_t owner = 0;
    if (file >> owner && owner > 0 && ::kill(owner, 0) != 0 && errno == ESRCH)
      std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

LocalCluster::LocalCluster(LocalClusterOptions options) : options_(std::move(options)) {
  // Paths of sockets are short.
  std::filesystem::path where = std::filesystem::temp_directory_path();
  if (where.string().size() > kLongestFolder) where = "/tmp";
  static_cast<void>(guard([&] { remove_left_behind(where); }));
  std::string pattern = (where / "weft-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail(ErrorKind::unavailable, kPlace, "wanted a folder for sockets at '{}', found {}", pattern, std::strerror(errno));
  }
  folder_ = pattern;
  const std::optional<Failure> failure = guard([&] {
    write_file_atomic(folder_ / kOwner, fmt::format("{}\n", ::getpid()));
    config_.file = folder_ / "cluster.toml";
    config_.name = folder_.filename().string();
    config_.stages = options_.stages;
    config_.timeouts = options_.timeouts;
    ClusterNode coordinator;
    coordinator.id = "coordinator";
    coordinator.address = "unix:" + (folder_ / "coordinator").string();
    coordinator.role = NodeRole::coordinator;
    config_.nodes.push_back(coordinator);
    for (int64_t s = 0; s < options_.stages; ++s) {
      ClusterNode node;
      node.id = fmt::format("stage-{}", s);
      node.address = "unix:" + (folder_ / node.id).string();
      node.stage = s;
      config_.nodes.push_back(node);
    }
    write_file_atomic(config_.file, config_.to_toml());
    workers_.resize(static_cast<size_t>(options_.stages));
    for (int64_t s = 0; s < options_.stages; ++s) start(s);
  });
  if (!failure) return;
  for (Process& worker : workers_) {
    if (worker.pid > 0) ::kill(worker.pid, SIGKILL);
    if (worker.pid > 0) ::waitpid(worker.pid, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  failure->raise();
}

void LocalCluster::start(int64_t stage) {
  starter_.post([this, stage] { fork_worker(stage); }).get();
}

void LocalCluster::fork_worker(int64_t stage) {
  Process& worker = workers_[static_cast<size_t>(stage)];
  const ClusterNode& node = config_.stage(stage);
  worker.log = folder_ / (node.id + ".log");
  std::vector<std::string> words = {"weft", "stage"};
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  for (const std::string& word :
       {std::string("--distributed-config"), config_.file.string(), std::string("--node-id"), node.id}) {
    words.push_back(word);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string program = options_.program.string();
  const pid_t parent = ::getpid();
  const int log = ::open(worker.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const pid_t pid = log < 0 ? -1 : ::fork();
  if (pid == 0) {
    // Between fork and exec only what is safe after a fork of a process with threads.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    ::setpgid(0, 0);  // Ctrl-C at the terminal is the coordinator's
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  const int error = errno;
  if (log >= 0) ::close(log);
  if (pid < 0) fail(ErrorKind::unavailable, kPlace, "stage {}: wanted a process, found {}", stage, std::strerror(error));
  worker.pid = pid;
}

bool LocalCluster::ended(Process& worker) {
  if (worker.pid <= 0) return true;
  int status = 0;
  if (::waitpid(worker.pid, &status, WNOHANG) != worker.pid) return false;
  worker.pid = -1;
  return true;
}

void LocalCluster::check(int64_t stage) {
  Process& worker = workers_[static_cast<size_t>(stage)];
  if (!ended(worker)) return;
  if (!reached_) {
    fail(ErrorKind::bad_checkpoint, kPlace, "stage {}: wanted a worker process, found that it ended: {}", stage,
         last_words(worker.log));
  }
  start(stage);
}

LocalCluster::~LocalCluster() {
  for (const Process& worker : workers_) {
    if (worker.pid <= 0) continue;
    ::kill(worker.pid, SIGTERM);
    ::kill(worker.pid, SIGCONT);  // one that is stopped would not hear it
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(kGrace);
  for (Process& worker : workers_) {
    while (!ended(worker)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        ::kill(worker.pid, SIGKILL);
        ::waitpid(worker.pid, nullptr, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace weft
