// UTF-8: one decoding step, a check, and the streaming decoder of prompt_and_api.md 1.6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  uint32_t code = 0;   // the character when `good`
  uint8_t length = 0;  // bytes of the character, or of the maximal ill-formed part; 0 only at the end of the input
  bool good = false;
  bool cut = false;  // not good, and more bytes could make it good
};

// Decodes the character at the front of `bytes`. An ill-formed front is measured as a maximal subpart (Unicode, table 3-8).
[[nodiscard]] Utf8Step utf8_step(std::string_view bytes);

// The offset of the first ill-formed byte, or nothing.
[[nodiscard]] std::optional<size_t> find_ill_formed_utf8(std::string_view bytes);

// Appends the UTF-8 form of a Unicode scalar value; a surrogate or a value above 0x10FFFF gives U+FFFD.
void append_utf8(std::string& out, uint32_t code);

// Bytes in pieces of any size to well-formed UTF-8. What is complete goes out at once; an incomplete tail of at most 3 bytes
// waits; each maximal ill-formed part becomes one U+FFFD as soon as it cannot become good.
//
//     decoder.feed("\xE4\xBD", out);  // nothing yet
//     decoder.feed("\xA0!", out);     // "你!"
class Utf8Decoder {
 public:
  // Appends to `out`.
  void feed(std::string_view bytes, std::string& out);
  // An incomplete tail becomes one U+FFFD; the decoder is as new.
  void flush(std::string& out);
  [[nodiscard]] bool pending() const { return !tail_.empty(); }

 private:
  std::string tail_;  // an incomplete character, at most 3 bytes
};

// `bytes` as a message may show them: control characters and ill-formed bytes as \x1b, all else as it is.
[[nodiscard]] std::string printable(std::string_view bytes);

// `text` as a message may name it: of more than `most` bytes the beginning, cut between characters, and "...".
[[nodiscard]] std::string shortened(std::string_view text, size_t most = 40);

// The whole of `bytes`, decoded as Utf8Decoder does.
[[nodiscard]] std::string to_valid_utf8(std::string_view bytes);

}  // namespace weft
