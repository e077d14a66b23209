#include "app/terminal.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include <fmt/format.h>

#include "app/exit_codes.h"
#include "base/error.h"
#include "base/file.h"

namespace weft {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(kExitInterrupted);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

bool output_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool errors_are_terminal() { return ::isatty(STDERR_FILENO) == 1; }
bool input_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }

void write_output(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) fail(ErrorKind::unavailable, "standard output", "writing: {}", std::strerror(errno));
}

void write_json_output(const Json& json) { write_output(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

void write_error_stream(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void write_note(std::string_view line) { write_error_stream(fmt::format("{}\n", line)); }

void StatusLine::progress(std::string_view what, int64_t done, int64_t total) {
  if (!errors_are_terminal()) return;
  const double time = now();
  if (!begun_) {
    begun_ = time;
    first_ = done;
  }
  if (visible_ && time - shown_ < 0.1) return;
  shown_ = time;
  visible_ = true;
  std::string line = fmt::format("\r\x1b[K{} {}/{}", what, done, total);
  const double passed = time - *begun_;
  if (total > 0) line += fmt::format(" ({} %)", 100 * done / total);
  if (passed > 0.0 && done > first_) {
    const double rate = static_cast<double>(done - first_) / passed;
    line += fmt::format(", {:.1f}/s, {:.0f} s left", rate, static_cast<double>(total - done) / rate);
  }
  write_error_stream(line);
}

void StatusLine::clear() {
  if (visible_) write_error_stream("\r\x1b[K");
  visible_ = false;
}

std::string read_input(const std::string& path) {
  if (path != "-") return read_text_file(path);
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR && !interrupted.load()) continue;
    if (got < 0) fail(ErrorKind::bad_input, "standard input", "reading: {}", std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

const std::atomic<bool>& interrupt_flag() { return interrupted; }

void watch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: a waiting read ends
}

void forget_interrupt() { interrupted.store(false); }

std::optional<std::string> read_line() {
  static std::string held;
  static bool ended = false;
  for (;;) {
    const size_t end = held.find('\n');
    if (end != std::string::npos || (ended && !held.empty())) {
      std::string line = held.substr(0, end);
      held.erase(0, end == std::string::npos ? held.size() : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended || interrupted.load()) return std::nullopt;
    char buffer[1 << 12];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got > 0) held.append(buffer, static_cast<size_t>(got));
    if (got == 0) ended = true;
    if (got < 0 && errno != EINTR) fail(ErrorKind::bad_input, "standard input", "reading: {}", std::strerror(errno));
  }
}

}  // namespace weft
