// A trace file that chrome://tracing and Perfetto open: one row a stage and kind of work, written as it happens. Times are
// microseconds since the trace was opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>

namespace weft {

class ChromeTrace {
 public:
  // Throws bad_input naming the file when it cannot be written.
  explicit ChromeTrace(const std::filesystem::path& file);
  ~ChromeTrace();  // close()
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  // Ends the array and the file; nothing is written after it. Throws unavailable when not everything was written (a full
  // disk).
  void close();
  // Row names: process `stage` (-1: the coordinator).
  void name_stage(int64_t stage, std::string_view name);
  // A span in seconds of this process's steady clock; nothing for one that has no length.
  void span(int64_t stage, std::string_view kind, double begin, double end, uint64_t step, int64_t rows);

 private:
  void write(std::string_view event);

  const std::string name_;
  std::mutex mutex_;
  std::ofstream file_;
  bool first_ = true;
  double origin_;  // seconds
};

}  // namespace weft
