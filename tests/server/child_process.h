// A program that runs beside a test: started with pipes, ended with the test.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::server_test {

inline constexpr std::chrono::seconds kPatience{90};  // for anything that would hang otherwise

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }
  ~Pipe() {
    close_reader();
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reader() const { return ends_[0]; }
  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_reader() { close(0); }
  void close_writer() { close(1); }

  // Up to `mark`, which is taken too. Throws when the writers are gone, or take longer than kPatience.
  std::string read_until(char mark) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const size_t found = text_.find(mark, searched_);
      if (found != std::string::npos) {
        std::string made = text_.substr(0, found);
        text_.erase(0, found + 1);
        searched_ = 0;
        return made;
      }
      searched_ = text_.size();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd end{reader(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&end, 1, static_cast<int>(left.count())) == 0)
        throw std::runtime_error("no word for too long");
      std::array<char, 16384> buffer{};
      const ssize_t got = ::read(reader(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw std::runtime_error("the program has ended; it wrote: " + text_);
      text_.append(buffer.data(), static_cast<size_t>(got));
    }
  }

  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::write(writer(), bytes.data(), bytes.size());
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) throw std::runtime_error("the program takes no bytes");
      bytes.remove_prefix(static_cast<size_t>(put));
    }
  }

 private:
  void close(size_t end) {
    if (ends_[end] >= 0) ::close(std::exchange(ends_[end], -1));
  }

  std::array<int, 2> ends_{-1, -1};
  std::string text_;
  size_t searched_ = 0;  // no mark before this
};

// In a process group of its own, which ends with this object.
class ChildProcess {
 public:
  // `files`: the file descriptors that the program gets, as {ours, its}.
  ChildProcess(std::vector<std::string> words, const std::vector<std::pair<int, int>>& files) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (pid_ != 0) return;
    ::setpgid(0, 0);
    (void)::signal(SIGHUP, SIG_DFL);  // whatever the tests run below
    // Above all that are wanted first, so that none is overwritten before its turn.
    constexpr int kAbove = 64;
    for (const auto& [ours, its] : files) ::dup2(::fcntl(ours, F_DUPFD_CLOEXEC, kAbove), its);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ~ChildProcess() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t id() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  // The exit code, or 256 + the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace weft::server_test
