// Characters, strings and the containers of JSON as terms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/terms.h"

namespace weft::grammar {

// How the characters of a string are written: inside the quotes of JSON, or as they are (arguments of a call in XTML).
enum class Spelling : uint8_t { json, raw };

struct CodeRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

inline constexpr int32_t kMaxDigits = 19;  // of the whole part of a number: no reader overflows
inline constexpr int32_t kMaxFractionDigits = 20;
inline constexpr int kAnyDepth = 16;  // containers of a value without a schema

class TextTerms {
 public:
  explicit TextTerms(Terms& terms);

  [[nodiscard]] Terms& terms() const { return terms_; }
  // One character of the ranges (ascending, apart), in its one usual spelling.
  [[nodiscard]] Term characters(const std::vector<CodeRange>& ranges, Spelling spelling) const;
  // One character in any spelling. Raw text has no control characters but tab and line ends.
  [[nodiscard]] Term any_character(Spelling spelling) const {
    return spelling == Spelling::json ? json_character_ : raw_character_;
  }
  // `inner` and what ends a string of that spelling: the quote, or <|close|>.
  [[nodiscard]] Term ended(Term inner, Spelling spelling) const;
  // `inner` and the quote behind it, as a name that NameGuard may want one token longer.
  [[nodiscard]] Term ended_name(Term inner) const { return terms_.unit(terms_.sequence(inner, terms_.literal("\"")), 1); }
  // A whole string around `inner`: with both quotes, or with <|close|> behind it.
  [[nodiscard]] Term quoted(Term inner, Spelling spelling) const;

  // Names of the members that no schema declares: any string but `taken`, quotes included.
  [[nodiscard]] Term other_key(const std::vector<std::string>& taken) const;
  // At most one space, or a line break with up to 32 spaces.
  [[nodiscard]] Term space() const { return space_; }
  // `"key": value`
  [[nodiscard]] Term member(Term key, Term value) const { return terms_.sequence({key, colon_, value}); }
  [[nodiscard]] Term key(std::string_view name) const;
  [[nodiscard]] Term object(std::vector<Members::Member> members, Term extra) const;
  [[nodiscard]] Term array(const std::vector<Term>& prefix, Term item, int32_t min, int32_t max) const;
  // Any value; containers in it nest at most kAnyDepth deep.
  [[nodiscard]] Term any_value() const { return any_; }
  [[nodiscard]] Term any_string(Spelling spelling) const;
  [[nodiscard]] Term any_object() const;
  [[nodiscard]] Term any_array() const;
  [[nodiscard]] Term integer() const;
  [[nodiscard]] Term number() const;

 private:
  [[nodiscard]] Term utf8(const std::vector<CodeRange>& ranges) const;
  [[nodiscard]] Term digit(char first = '0') const;
  void make_any();

  Terms& terms_;
  Term raw_character_ = kNothing;
  Term json_character_ = kNothing;
  Term space_ = kNothing;
  Term colon_ = kNothing;
  Term any_ = kNothing;
  Term any_inner_ = kNothing;  // one level less
};

// The set of the bytes of `text`.
[[nodiscard]] ByteSet byte_set(std::string_view text);
[[nodiscard]] ByteSet byte_range(uint8_t first, uint8_t last);

// An automaton over characters as they are, turned into one over their spelling inside the quotes of JSON.
[[nodiscard]] Dfa json_spelling(const Dfa& raw, std::string_view what);
// Strings of `character` that are not among `taken` (ascending).
[[nodiscard]] Dfa strings_except(Terms& terms, Term character, const std::vector<std::string>& taken, std::string_view what);

}  // namespace weft::grammar
