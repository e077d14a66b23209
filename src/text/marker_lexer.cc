#include "text/marker_lexer.h"

namespace weft {

size_t next_marker(std::string_view text, std::span<const std::string_view> spellings) {
  for (size_t at = text.find('<'); at != text.npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    for (const std::string_view marker : spellings) {
      const size_t length = std::min(rest.size(), marker.size());
      if (rest.substr(0, length) == marker.substr(0, length)) return at;
    }
  }
  return text.size();
}

}  // namespace weft
