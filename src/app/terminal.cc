#include "app/terminal.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include <fmt/format.h>

#include "app/exit_codes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/utf8.h"

namespace weft {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<bool> terminated{false};

extern "C" void on_interrupt(int signal) {
  if (signal != SIGINT) terminated.store(true);
  // A terminal that closes hangs up more than once: its shell and the system do.
  if (!interrupted.exchange(true) || signal == SIGHUP) return;
  constexpr std::string_view kLine = "\ninterrupted twice: ended at once\n";
  static_cast<void>(!::write(STDERR_FILENO, kLine.data(), kLine.size()));
  ::_exit(kExitInterrupted);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr double kPlainInterval = 10.0;  // seconds between lines where there is no terminal

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e12));
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min", whole / 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string progress_text(std::string_view what, int64_t done, int64_t total, int64_t first, double seconds) {
  const bool bytes = what == "bytes";
  std::string line =
      bytes ? fmt::format("{} of {}", human_bytes(done), human_bytes(total)) : fmt::format("{} {} of {}", what, done, total);
  if (total > 0)
    line += fmt::format(" ({} %)", static_cast<int64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
  if (seconds > 0.0 && done > first) {
    const double rate = static_cast<double>(done - first) / seconds;
    line += bytes ? fmt::format(", {}/s", human_bytes(static_cast<int64_t>(rate))) : fmt::format(", {:.1f}/s", rate);
    line += fmt::format(", {} left", duration_text(static_cast<double>(total - done) / rate));
  }
  return line;
}

}  // namespace

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text("weft");
  std::string word;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0')) text += " " + word;
  return text;
}

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

void write_note(std::string_view text) {
  std::string lines;
  for (;;) {
    const size_t end = text.find('\n');
    lines += printable(text.substr(0, end)) + '\n';
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  write_error_stream(lines);
}

void StatusLine::progress(std::string_view what, int64_t done, int64_t total) {
  const double time = now();
  if (!begun_) {
    begun_ = time;
    shown_ = time;
    first_ = done;
  }
  const bool terminal = errors_are_terminal();
  if (terminal ? visible_ && time - shown_ < 0.1 : time - shown_ < kPlainInterval) return;
  shown_ = time;
  visible_ = terminal;
  const std::string text = progress_text(what, done, total, first_, time - *begun_);
  write_error_stream(terminal ? fmt::format("\r\x1b[K{}", text) : fmt::format("{}\n", text));
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
  // Without SA_RESTART: a waiting read ends.
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction before{};
  const bool ignored = ::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
  if (!ignored) ::sigaction(SIGHUP, &action, nullptr);  // nohup(1) means it
}

void forget_interrupt() {
  if (!terminated.load()) interrupted.store(false);
}

void stop_if_interrupted() {
  if (interrupted.load()) fail(ErrorKind::unavailable, "interrupt", "stopped before the end");
}

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
