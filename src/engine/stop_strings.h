// Stop strings of a request: what may be shown of a text that grows, and where it ends (prompt_and_api.md 6.5).
//
//     StopStrings stops({"\n\n", "END"});
//     if (stops.feed(piece, shown)) ...   // the text ends here; `shown` has what stands before the stop string
//     stops.flush(shown);                 // the text ended by itself: what was held back
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class StopStrings {
 public:
  // Each at least one byte of well-formed UTF-8.
  explicit StopStrings(std::vector<std::string> stops);

  [[nodiscard]] bool empty() const { return stops_.empty(); }
  // Appends to `shown` what can be no part of a stop string any more: all but the longest end that begins one. True: a stop
  // string is complete; further text is dropped. The first to be complete wins, of several the longest. How the text was cut
  // makes no difference.
  [[nodiscard]] bool feed(std::string_view text, std::string& shown);
  // Appends what is held back, unless a stop string was complete. Text that follows begins anew.
  void flush(std::string& shown);
  // The stop string that was complete.
  [[nodiscard]] const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // [i]: longest proper border of the first i + 1 bytes (Knuth, Morris and Pratt)
    size_t state = 0;             // bytes at the end of the text that begin this one
  };

  std::vector<Stop> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace weft
