#include "base/guard.h"

#include <string_view>

namespace weft {

void Failure::raise() const {
  const std::string_view text = message;
  const size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  if (end == std::string_view::npos) throw Error(kind, "weft", text, stage);
  throw Error(kind, text.substr(1, end - 1), text.substr(end + 2), stage);
}

Failure current_failure() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return {error.kind(), error.what(), error.stage()};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "[memory] wanted more memory than this machine gives, found std::bad_alloc"};
  } catch (const std::exception& error) {
    return {ErrorKind::internal, std::string("[weft] unexpected exception: ") + error.what()};
  } catch (...) {
    return {ErrorKind::internal, "[weft] unexpected exception of unknown type"};
  }
}

}  // namespace weft
