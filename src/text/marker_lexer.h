// The text front end's lexer (prompt_and_api.md 3.2): bytes in any pieces to text and the four marker spellings.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

enum class Marker : uint8_t { open, close, sep, end_of_message };

inline constexpr std::array<std::string_view, 4> kMarkerSpellings{"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
[[nodiscard]] constexpr std::string_view spelling(Marker marker) { return kMarkerSpellings[static_cast<size_t>(marker)]; }

// Holds back the longest suffix that is a proper prefix of a spelling (at most 13 bytes). Everything is decided from the held
// bytes themselves, so nothing can be counted twice.
class MarkerLexer {
 public:
  // Calls on_text(std::string_view) and on_marker(Marker) in the order of the input.
  template <class OnText, class OnMarker>
  void feed(std::string_view bytes, OnText&& on_text, OnMarker&& on_marker) {
    buffer_ += bytes;
    std::string_view rest = buffer_;
    while (true) {
      const size_t at = next_candidate(rest);
      if (at > 0) on_text(rest.substr(0, at));
      rest.remove_prefix(at);
      if (rest.empty()) break;
      size_t i = 0;
      while (i < kMarkerSpellings.size() && !rest.starts_with(kMarkerSpellings[i])) ++i;
      if (i == kMarkerSpellings.size()) break;  // a proper prefix: held
      rest.remove_prefix(kMarkerSpellings[i].size());
      on_marker(static_cast<Marker>(i));
    }
    buffer_.erase(0, buffer_.size() - rest.size());
  }
  // The held bytes; the lexer is as new.
  [[nodiscard]] std::string take_held() { return std::exchange(buffer_, {}); }

 private:
  // The offset of the first spelling, or of a suffix that is a proper prefix of one; text.size() if there is neither.
  [[nodiscard]] static size_t next_candidate(std::string_view text);

  std::string buffer_;
};

}  // namespace weft
