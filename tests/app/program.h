// Runs the weft program as a user does: arguments, standard input, the two outputs, the exit code, Ctrl-C.
#pragma once

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <poll.h>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace weft::app_test {

struct Outcome {
  int code = -1;  // exit code; 256 + the signal that ended it
  std::string out;
  std::string err;
};

struct RunOptions {
  std::string input = {};
  std::string interrupt_at = {};              // Ctrl-C as soon as standard error holds this; empty: never
  std::function<bool()> interrupt_when = {};  // the same as soon as this holds
  int signal = SIGINT;                        // what Ctrl-C sends
  std::function<void(pid_t)> act = {};        // done in place of sending it
};

inline std::string mini_dir() { return std::string(WEFT_SOURCE_DIR) + "/models/k3-mini"; }

inline Outcome run(const std::vector<std::string>& arguments, const RunOptions& options = {}) {
  const auto make_pipe = [] {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    return ends;
  };
  const std::array<int, 2> in = make_pipe();
  const std::array<int, 2> out = make_pipe();
  const std::array<int, 2> err = make_pipe();
  std::vector<std::string> words = {WEFT_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const pid_t child = ::fork();
  if (child == 0) {
    (void)::signal(SIGHUP, SIG_DFL);  // whatever the tests run below
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  // Inputs of the tests fit into a pipe.
  EXPECT_EQ(::write(in[1], options.input.data(), options.input.size()), static_cast<ssize_t>(options.input.size()));
  ::close(in[1]);

  Outcome outcome;
  std::array<pollfd, 2> ends = {pollfd{out[0], POLLIN, 0}, pollfd{err[0], POLLIN, 0}};
  bool interrupted = options.interrupt_at.empty() && !options.interrupt_when;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (::poll(ends.data(), ends.size(), options.interrupt_when ? 5 : -1) < 0 && errno != EINTR) break;
    for (pollfd& end : ends) {
      if (end.fd < 0 || end.revents == 0) continue;
      std::array<char, 4096> buffer{};
      const ssize_t got = ::read(end.fd, buffer.data(), buffer.size());
      if (got <= 0) {
        end.fd = -1;
        continue;
      }
      (end.fd == out[0] ? outcome.out : outcome.err).append(buffer.data(), static_cast<size_t>(got));
    }
    const bool now =
        options.interrupt_when ? options.interrupt_when() : outcome.err.find(options.interrupt_at) != std::string::npos;
    if (!interrupted && now) {
      if (options.act)
        options.act(child);
      else
        ::kill(child, options.signal);
      interrupted = true;
    }
  }
  ::close(out[0]);
  ::close(err[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  return outcome;
}

// No spelling of a control token in `text`.
inline void expect_no_markers(const std::string& text) {
  for (const char* marker : {"<|", "|>", "[EOS]", "[BOS]", "[PAD]"}) EXPECT_EQ(text.find(marker), std::string::npos) << text;
}

}  // namespace weft::app_test
