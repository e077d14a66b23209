#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/unicode.h"

namespace weft {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

struct Char {
  uint8_t cls;
  uint8_t length;
};

class Scanner {
 public:
  Scanner(std::string_view text, const uint8_t* classes) : text_(text), classes_(classes) {}

  [[nodiscard]] size_t kimi_end(size_t begin) const {
    const Char first = at(begin);
    if (first.cls & kHan) return run_end(begin, kHan);
    if (const size_t end = word_end(begin, first); end != kNone) return contraction_end(end);
    if (first.cls & kNumber) return number_end(begin);
    if (const size_t end = symbol_end(begin); end != kNone) return end;
    return space_end(begin);
  }

  [[nodiscard]] size_t qwen_end(size_t begin) const {
    if (const size_t end = contraction_end(begin); end > begin) return end;
    const Char first = at(begin);
    const size_t after = begin + first.length;
    if (first.cls & kLetter) return run_end(after, kLetter);
    if (first.cls & kNumber) return after;
    if (!is_line_end(begin)) {
      if (const size_t end = run_end(after, kLetter); end > after) return end;
    }
    if (const size_t end = symbol_end(begin); end != kNone) return end;
    return space_end(begin);
  }

 private:
  [[nodiscard]] uint8_t byte(size_t i) const { return static_cast<uint8_t>(text_[i]); }
  [[nodiscard]] bool is_line_end(size_t i) const { return text_[i] == '\r' || text_[i] == '\n'; }

  // Well-formed input is the caller's duty, so the lead byte alone gives the length.
  [[nodiscard]] Char at(size_t i) const {
    const uint32_t lead = byte(i);
    if (lead < 0x80) return {classes_[lead], 1};
    if (lead < 0xE0) return {classes_[(lead & 0x1F) << 6 | tail(i + 1)], 2};
    if (lead < 0xF0) return {classes_[(lead & 0x0F) << 12 | tail(i + 1) << 6 | tail(i + 2)], 3};
    return {classes_[(lead & 0x07) << 18 | tail(i + 1) << 12 | tail(i + 2) << 6 | tail(i + 3)], 4};
  }
  [[nodiscard]] uint32_t tail(size_t i) const { return byte(i) & 0x3Fu; }

  // The end of the maximal run of characters that have one of the bits of `mask` (or none of them, when `wanted` is false).
  [[nodiscard]] size_t run_end(size_t i, uint8_t mask, bool wanted = true) const {
    while (i < text_.size()) {
      const Char c = at(i);
      if (((c.cls & mask) != 0) != wanted) break;
      i += c.length;
    }
    return i;
  }

  // Alternatives 2 and 3. Each tries with the optional leading character first, and 2 is given up before 3 begins.
  [[nodiscard]] size_t word_end(size_t begin, Char first) const {
    const bool leading = !(first.cls & (kLetter | kNumber)) && !is_line_end(begin) && begin + first.length < text_.size();
    const size_t after = begin + first.length;
    size_t end = kNone;
    if (leading) end = lower_form_end(after);
    if (end == kNone && (first.cls & (kUpperRun | kLowerRun))) end = lower_form_end(begin);
    if (end == kNone && leading) end = upper_form_end(after);
    if (end == kNone && (first.cls & kUpperRun)) end = upper_form_end(begin);
    return end;
  }

  // U* L+ with backtracking.
  [[nodiscard]] size_t lower_form_end(size_t begin) const {
    const size_t upper = run_end(begin, kUpperRun);
    const size_t end = run_end(upper, kLowerRun);
    if (end > upper) return end;
    for (size_t i = upper; i > begin;) {
      size_t start = i - 1;
      while ((byte(start) & 0xC0) == 0x80) --start;
      if (at(start).cls & kLowerRun) return i;
      i = start;
    }
    return kNone;
  }

  // U+ L*
  [[nodiscard]] size_t upper_form_end(size_t begin) const {
    const size_t upper = run_end(begin, kUpperRun);
    return upper == begin ? kNone : run_end(upper, kLowerRun);
  }

  // One of 's 't 're 've 'm 'll 'd without regard to case; U+017F folds to s.
  [[nodiscard]] size_t contraction_end(size_t i) const {
    if (i >= text_.size() || text_[i] != '\'') return i;
    const auto lower = [&](size_t k) { return k < text_.size() ? static_cast<char>(text_[k] | 0x20) : '\0'; };
    switch (lower(i + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd': return i + 2;
      case 'r':
      case 'v': return lower(i + 2) == 'e' ? i + 3 : i;
      case 'l': return lower(i + 2) == 'l' ? i + 3 : i;
      default: return text_.substr(i + 1, 2) == "\xC5\xBF" ? i + 3 : i;
    }
  }

  [[nodiscard]] size_t number_end(size_t i) const {
    for (int count = 0; count < 3 && i < text_.size(); ++count) {
      const Char c = at(i);
      if (!(c.cls & kNumber)) break;
      i += c.length;
    }
    return i;
  }

  [[nodiscard]] size_t symbol_end(size_t begin) const {
    const size_t start = begin + (text_[begin] == ' ' ? 1 : 0);
    size_t end = run_end(start, kSpace | kLetter | kNumber, false);
    if (end == start) return kNone;
    while (end < text_.size() && is_line_end(end)) ++end;
    return end;
  }

  [[nodiscard]] size_t space_end(size_t begin) const {
    size_t last = begin;            // start of the run's last character
    size_t after_line_end = kNone;  // after the run's last CR or LF
    size_t i = begin;
    while (i < text_.size()) {
      const Char c = at(i);
      if (!(c.cls & kSpace)) break;
      last = i;
      if (is_line_end(i)) after_line_end = i + 1;
      i += c.length;
    }
    if (after_line_end != kNone) return after_line_end;
    return i == text_.size() || last == begin ? i : last;
  }

  std::string_view text_;
  const uint8_t* classes_;
};

}  // namespace

size_t kimi_piece_end(std::string_view text, size_t begin, const uint8_t* classes) {
  return Scanner(text, classes).kimi_end(begin);
}

size_t qwen_piece_end(std::string_view text, size_t begin, const uint8_t* classes) {
  return Scanner(text, classes).qwen_end(begin);
}

std::vector<std::string_view> pieces_of(std::string_view text, PieceEnd piece_end) {
  const uint8_t* classes = char_classes();
  std::vector<std::string_view> pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(text, begin, classes);
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

std::vector<std::string_view> kimi_slices(std::string_view text) {
  // As many bytes as a run has characters cannot be cut.
  if (text.size() <= kKimiRunCharacters) return {text};
  const uint8_t* classes = char_classes();
  std::vector<std::string_view> slices;
  size_t start = 0;       // byte offset of the current slice
  size_t characters = 0;  // since the last cut at kKimiSliceCharacters
  size_t run = 0;
  bool run_is_space = false;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    uint32_t code = lead;
    size_t length = 1;
    if (lead >= 0x80) {
      length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      code = lead & (0x7Fu >> length);
      for (size_t k = 1; k < length; ++k) code = code << 6 | (static_cast<uint8_t>(text[i + k]) & 0x3Fu);
    }
    const bool is_space = (classes[code] & kSpace) != 0;
    if (characters == kKimiSliceCharacters) {
      slices.push_back(text.substr(start, i - start));
      start = i;
      characters = 0;
      run = 0;
    }
    ++characters;
    if (run == 0 || is_space != run_is_space) {
      run = 1;
      run_is_space = is_space;
    } else if (++run > kKimiRunCharacters) {
      slices.push_back(text.substr(start, i - start));
      start = i;
      run = 1;
    }
    i += length;
  }
  slices.push_back(text.substr(start));
  return slices;
}

}  // namespace weft
