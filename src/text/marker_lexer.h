// The text front end's lexer (prompt_and_api.md 3.2): bytes in any pieces to text and marker spellings.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

// The offset of the first of `spellings`, or of a suffix of `text` that is a proper prefix of one; text.size() if there is
// neither. Every spelling begins with '<'.
[[nodiscard]] size_t next_marker(std::string_view text, std::span<const std::string_view> spellings);

// Holds back the longest suffix that is a proper prefix of a spelling. Everything is decided from the held bytes themselves, so
// nothing can be counted twice.
class MarkerLexer {
 public:
  // `spellings` outlive the lexer.
  explicit MarkerLexer(std::span<const std::string_view> spellings) : spellings_(spellings) {}

  // Calls on_text(std::string_view) and on_marker(index of the spelling) in the order of the input.
  template <class OnText, class OnMarker>
  void feed(std::string_view bytes, OnText&& on_text, OnMarker&& on_marker) {
    buffer_ += bytes;
    std::string_view rest = buffer_;
    while (true) {
      const size_t at = next_marker(rest, spellings_);
      if (at > 0) on_text(rest.substr(0, at));
      rest.remove_prefix(at);
      if (rest.empty()) break;
      const auto found =
          std::ranges::find_if(spellings_, [&](std::string_view spelling) { return rest.starts_with(spelling); });
      if (found == spellings_.end()) break;  // a proper prefix: held
      rest.remove_prefix(found->size());
      on_marker(static_cast<size_t>(found - spellings_.begin()));
    }
    buffer_.erase(0, buffer_.size() - rest.size());
  }
  // The held bytes; the lexer is as new.
  [[nodiscard]] std::string take_held() { return std::exchange(buffer_, {}); }

 private:
  std::span<const std::string_view> spellings_;
  std::string buffer_;
};

}  // namespace weft
