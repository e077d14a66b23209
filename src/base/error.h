// The one error type of Weft.
//
// A message names the place, what was wanted and what was found:
//
//     fail(ErrorKind::bad_checkpoint, "safetensors", "tensor '{}': wanted U8 [3072, 112], found {} {}", name, dtype, shape);
//     // what(): [safetensors] tensor 'x': wanted U8 [3072, 112], found F32 [3072, 112]
//
// Bad input never reaches an assert; asserts are for programmer mistakes only.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace weft {

enum class ErrorKind {
  bad_input,        // the user's request, flag or file is wrong (HTTP 400, exit 2)
  bad_checkpoint,   // the model's files are wrong (exit 4)
  unsupported,      // understood, and not done by this program (HTTP 400, exit 2 or 4)
  unavailable,      // cannot be done now: out of memory, slots, a peer is gone (HTTP 503)
  plan_impossible,  // the model does not fit as asked (exit 3)
  unreachable,      // a pipeline stage could not be reached at start (HTTP 503, exit 5)
  stage_lost,       // a pipeline stage is gone or cut off (HTTP 503, exit 6)
  stage_timeout,    // a pipeline stage did not answer in time (HTTP 504, exit 7)
  handshake,        // two ends disagree about version, model or plan (exit 8)
  security,         // a certificate or token was refused, or plaintext is not allowed (exit 9)
  internal,         // a defect of Weft (HTTP 500, exit 1)
};

[[nodiscard]] std::string_view to_string(ErrorKind kind);
[[nodiscard]] ErrorKind error_kind_from(std::string_view name);  // the reverse; internal for another name

// Where in a pipeline a failure arose.
struct StagePlace {
  int64_t stage = 0;
  std::string node;
  std::optional<uint64_t> step;  // that was under way
};

class Error : public std::exception {
 public:
  // `place` is the component or file that found the fault, without brackets.
  Error(ErrorKind kind, std::string_view place, std::string_view message, std::shared_ptr<const StagePlace> stage = nullptr);

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const char* what() const noexcept override { return what_.c_str(); }                // "[place] message"
  [[nodiscard]] const std::shared_ptr<const StagePlace>& stage() const noexcept { return stage_; }  // empty: of no stage

 private:
  ErrorKind kind_;
  std::string what_;
  std::shared_ptr<const StagePlace> stage_;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, std::string_view place, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, place, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft
