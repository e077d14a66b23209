#include "base/error.h"

#include <utility>

#include "base/utf8.h"

namespace weft {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input: return "bad_input";
    case ErrorKind::bad_checkpoint: return "bad_checkpoint";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::unavailable: return "unavailable";
    case ErrorKind::plan_impossible: return "plan_impossible";
    case ErrorKind::unreachable: return "unreachable";
    case ErrorKind::stage_lost: return "stage_lost";
    case ErrorKind::stage_timeout: return "stage_timeout";
    case ErrorKind::handshake: return "handshake";
    case ErrorKind::security: return "security";
    case ErrorKind::internal: return "internal";
  }
  return "internal";
}

ErrorKind error_kind_from(std::string_view name) {
  for (int kind = 0; kind < static_cast<int>(ErrorKind::internal); ++kind) {
    if (to_string(static_cast<ErrorKind>(kind)) == name) return static_cast<ErrorKind>(kind);
  }
  return ErrorKind::internal;
}

Error::Error(ErrorKind kind, std::string_view place, std::string_view message, std::shared_ptr<const StagePlace> stage)
    : kind_(kind), what_(printable(fmt::format("[{}] {}", place.empty() ? "''" : place, message))), stage_(std::move(stage)) {}

}  // namespace weft
