// Standard streams: results to standard output, everything else to standard error.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace weft {

[[nodiscard]] std::string command_line();  // of this program

[[nodiscard]] bool output_is_terminal();
[[nodiscard]] bool errors_are_terminal();
[[nodiscard]] bool input_is_terminal();

// Writes and flushes. Throws unavailable when standard output does not take it.
void write_output(std::string_view text);
// Pretty JSON and a line break. Text that is not well-formed UTF-8 comes with U+FFFD.
void write_json_output(const Json& json);
// A line on standard error, or several; characters that a terminal would obey are escaped.
void write_note(std::string_view text);
// Text on standard error as it is.
void write_error_stream(std::string_view text);

// Progress on standard error: on a terminal one line that is written over, at most ten times a second; elsewhere a line every
// ten seconds, so that short work writes none.
class StatusLine {
 public:
  StatusLine() = default;
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // "prompt 512 of 2048 (25 %), 180.0/s, 9 s left"; counts of "bytes" in units: "1.20 GiB of 2.50 GiB (48 %), 210.00 MiB/s,
  // ..."
  void progress(std::string_view what, int64_t done, int64_t total);
  void clear();

 private:
  std::optional<double> begun_;  // seconds
  int64_t first_ = 0;
  double shown_ = 0.0;
  bool visible_ = false;
};

// A report as JSON or as text.
template <class Report>
void write_report(const Report& report, bool json) {
  if (json) {
    write_json_output(report.to_json());
  } else {
    write_output(report.to_text());
  }
}

// The contents of a file, or of standard input for "-".
[[nodiscard]] std::string read_input(const std::string& path);

// Ctrl-C (SIGINT), SIGTERM and SIGHUP (a terminal that closes; not where it is ignored, as below nohup) set the flag; a second
// SIGINT or SIGTERM ends the process at once with exit code 130.
[[nodiscard]] const std::atomic<bool>& interrupt_flag();
void watch_interrupts();
void forget_interrupt();     // for a program that goes on after Ctrl-C; other signals are not forgotten
void stop_if_interrupted();  // throws unavailable once the flag is set

// Calls `body` with a function that shows progress in bytes and throws unavailable once Ctrl-C came.
template <class Body>
auto with_byte_progress(Body&& body) {
  watch_interrupts();
  StatusLine status;
  return std::forward<Body>(body)([&status](int64_t done, int64_t total) {
    stop_if_interrupted();
    status.progress("bytes", done, total);
  });
}

// A line of standard input without its end; nothing at the end of the input or when Ctrl-C came while waiting.
[[nodiscard]] std::optional<std::string> read_line();

}  // namespace weft
