#include "pipeline/remote/chrome_trace.h"

#include <chrono>

#include <fmt/format.h>

#include "base/error.h"
#include "base/guard.h"
#include "base/json.h"

namespace weft {

ChromeTrace::ChromeTrace(const std::filesystem::path& file)
    : name_(file.string()),
      file_(file),
      origin_(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count()) {
  if (!file_) fail(ErrorKind::bad_input, file.string(), "wanted a file to write the trace into, found none that opens");
  file_ << "[";
}

void ChromeTrace::close() {
  const std::lock_guard lock(mutex_);
  if (!file_.is_open()) return;
  file_ << "\n]\n";
  file_.close();
  if (!file_) fail(ErrorKind::unavailable, name_, "wanted the whole trace written, found that the file takes no more");
}

ChromeTrace::~ChromeTrace() {
  static_cast<void>(guard([&] { close(); }));
}

void ChromeTrace::write(std::string_view event) {
  file_ << (first_ ? "\n" : ",\n") << event;
  first_ = false;
}

void ChromeTrace::name_stage(int64_t stage, std::string_view name) {
  const std::lock_guard lock(mutex_);
  const Json event = {{"name", "process_name"}, {"ph", "M"}, {"pid", stage + 1}, {"args", {{"name", std::string(name)}}}};
  write(event.dump());
}

void ChromeTrace::span(int64_t stage, std::string_view kind, double begin, double end, uint64_t step, int64_t rows) {
  if (end <= begin) return;
  const std::lock_guard lock(mutex_);
  const Json event = {{"name", std::string(kind)},
                      {"cat", "pipeline"},
                      {"ph", "X"},
                      {"pid", stage + 1},
                      {"tid", std::string(kind)},
                      {"ts", (begin - origin_) * 1e6},
                      {"dur", (end - begin) * 1e6},
                      {"args", {{"step", step}, {"rows", rows}}}};
  write(event.dump());
}

}  // namespace weft
