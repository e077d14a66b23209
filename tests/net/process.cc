#include "net/process.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/error.h"

namespace weft::net_test {
namespace {

constexpr auto kLook = std::chrono::milliseconds(10);

std::filesystem::path with_end(const std::filesystem::path& path, const char* end) { return path.string() + end; }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int open_log(const std::filesystem::path& path) { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); }

}  // namespace

Process::Process(Network& network, int host, std::vector<std::string> words, const std::filesystem::path& log)
    : log_(log), words_(fmt::format("{}", fmt::join(words, " "))) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(ErrorKind::unavailable, "process", "wanted a pipe, found none");
  const Descriptor in(ends[0]);
  input_ = Descriptor(ends[1]);
  const Descriptor out(open_log(with_end(log, ".out")));
  const Descriptor err(open_log(with_end(log, ".err")));
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(in.number(), STDIN_FILENO);
    ::dup2(out.number(), STDOUT_FILENO);
    ::dup2(err.number(), STDERR_FILENO);
    if (network.enter(host)) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  if (pid_ < 0) fail(ErrorKind::unavailable, "process", "wanted a process, found none");
  network.add_process(host, pid_);
}

Process::~Process() {
  if (!is_running()) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const {
  if (!code_) ::kill(pid_, number);
}

void Process::write_line(const std::string& text) {
  const std::string line = text + "\n";
  if (::write(input_.number(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    fail(ErrorKind::unavailable, "process", "{}: wanted one that reads, found none", words_);
  }
}

std::string Process::out() const { return text_of(with_end(log_, ".out")); }
std::string Process::err() const { return text_of(with_end(log_, ".err")); }

std::string Process::story() const {
  return fmt::format("{}\n---- standard output\n{}\n---- standard error\n{}\n----\n", words_, out(), err());
}

bool Process::is_running() {
  if (code_) return false;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended == 0) return true;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  return false;
}

std::optional<int> Process::wait(double seconds) {
  static_cast<void>(wait_for([] { return false; }, seconds));
  return code_;
}

bool Process::wait_for(const std::function<bool()>& holds, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    if (holds()) return true;
    // What it wrote at its end counts.
    if (!is_running()) return holds();
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kLook);
  }
}

bool Process::wait_for_err(const std::string& text, double seconds) {
  return wait_for([&] { return err().find(text) != std::string::npos; }, seconds);
}

}  // namespace weft::net_test
