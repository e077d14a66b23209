#include "text/normalize.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <utf8proc.h>

#include "base/error.h"
#include "base/utf8.h"

namespace weft {
namespace {

// Characters that are their own NFC form, are not reordered, and do not combine with what stands before them: those below the
// combining marks, quotes and dashes, kana without their sound marks, ideographs, Hangul syllables (the parts of which
// combine), full-width forms.
bool stands_alone(uint32_t code) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 8> kRanges{{{0, 0x2FF},
                                                                  {0x2010, 0x2027},
                                                                  {0x3001, 0x3029},
                                                                  {0x3041, 0x3096},
                                                                  {0x309B, 0x30FF},
                                                                  {0x4E00, 0x9FFF},
                                                                  {0xAC00, 0xD7A3},
                                                                  {0xFF01, 0xFF9F}}};
  return std::ranges::any_of(kRanges, [code](const auto& range) { return code >= range.first && code <= range.second; });
}

bool needs_no_change(std::string_view text) {
  while (true) {
    const auto* first = std::find_if(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; });
    text.remove_prefix(static_cast<size_t>(first - text.begin()));
    if (text.empty()) return true;
    const Utf8Step step = utf8_step(text);
    if (!stands_alone(step.code)) return false;
    text.remove_prefix(step.length);
  }
}

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  if (needs_no_change(text)) return text;
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    text.remove_prefix(step.length);
    std::array<utf8proc_int32_t, 32> parts{};
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code), parts.data(),
                                               static_cast<utf8proc_ssize_t>(parts.size()), kDecompose, nullptr);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size()))
      fail(ErrorKind::internal, "tokenizer", "wanted the parts of U+{:04X}, found {}", step.code, count);
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  // utf8proc orders marks by exchanging neighbours, which takes forever on a long run of them.
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [](utf8proc_int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  const auto length = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0)
    fail(ErrorKind::internal, "tokenizer", "wanted the composed form of a text, found {}", utf8proc_errmsg(length));
  storage.clear();
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(storage, static_cast<uint32_t>(codes[static_cast<size_t>(i)]));
  return storage;
}

}  // namespace weft
