#include "engine/grammar/text_terms.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "text/json_value.h"

namespace weft::grammar {
namespace {

constexpr std::string_view kHex = "0123456789abcdefABCDEF";
constexpr std::array<std::pair<char, uint8_t>, 7> kShortEscapes{
    {{'"', '"'}, {'\\', '\\'}, {'b', 8}, {'t', 9}, {'n', 10}, {'f', 12}, {'r', 13}}};

// Ranges that share the length of their UTF-8 form, cut so that each is a sequence of byte ranges.
void cut(uint32_t first, uint32_t last, int length, std::vector<CodeRange>& out) {
  for (int i = 1; i < length; ++i) {
    const uint32_t mask = (1U << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      cut(first, first | mask, length, out);
      return cut((first | mask) + 1, last, length, out);
    }
    if ((last & mask) != mask) {
      cut(first, (last & ~mask) - 1, length, out);
      return cut(last & ~mask, last, length, out);
    }
  }
  out.push_back({first, last});
}

}  // namespace

ByteSet byte_set(std::string_view text) {
  ByteSet set;
  for (const char byte : text) set.set(static_cast<uint8_t>(byte));
  return set;
}

ByteSet byte_range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (size_t byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

TextTerms::TextTerms(Terms& terms) : terms_(terms) {
  const std::vector<CodeRange> printable{{0x20, 0x10FFFF}};
  raw_character_ = terms_.either({terms_.bytes(byte_set("\t\n\r")), utf8(printable)});
  const Term hex = terms_.bytes(byte_set(kHex));
  const Term two = terms_.sequence(hex, hex);
  const Term d = terms_.bytes(byte_set("dD"));
  const Term plain = terms_.either({terms_.sequence({terms_.bytes(byte_set("0123456789abcefABCEF")), hex, two}),
                                    terms_.sequence({d, terms_.bytes(byte_set("01234567")), two})});
  const Term pair = terms_.sequence(
      {d, terms_.bytes(byte_set("89abAB")), two, terms_.literal("\\u"), d, terms_.bytes(byte_set("cdefCDEF")), two});
  const Term escaped =
      terms_.either({terms_.bytes(byte_set("\"\\/bfnrt")), terms_.sequence(terms_.literal("u"), terms_.either({plain, pair}))});
  json_character_ =
      terms_.either({utf8({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}}), terms_.sequence(terms_.literal("\\"), escaped)});
  const Term blank = terms_.literal(" ");
  space_ = terms_.either({kEnd, blank, terms_.sequence(terms_.literal("\n"), terms_.repeat(blank, 0, 32))});
  colon_ = terms_.sequence(terms_.literal(":"), terms_.optional(blank));
  make_any();
}

Term TextTerms::utf8(const std::vector<CodeRange>& ranges) const {
  constexpr std::array<CodeRange, 5> kLengths{
      {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}};
  ByteSet single;
  std::vector<CodeRange> longer;
  for (const CodeRange& range : ranges) {
    for (size_t i = 0; i < kLengths.size(); ++i) {
      const uint32_t first = std::max(range.first, kLengths[i].first);
      const uint32_t last = std::min(range.last, kLengths[i].last);
      if (first > last) continue;
      if (i == 0) {
        single |= byte_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
      } else {
        cut(first, last, i < 3 ? static_cast<int>(i) + 1 : static_cast<int>(i), longer);
      }
    }
  }
  std::vector<Term> choices{terms_.bytes(single)};
  for (const CodeRange& range : longer) {
    std::string first;
    std::string last;
    append_utf8(first, range.first);
    append_utf8(last, range.last);
    Term whole = kEnd;
    for (size_t i = first.size(); i-- > 0;) {
      whole = terms_.sequence(terms_.bytes(byte_range(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]))), whole);
    }
    choices.push_back(whole);
  }
  return terms_.either(choices);
}

Term TextTerms::characters(const std::vector<CodeRange>& ranges, Spelling spelling) const {
  if (spelling == Spelling::raw) return utf8(ranges);
  std::vector<CodeRange> plain;
  std::vector<Term> choices;
  for (const CodeRange& range : ranges) {
    // The characters that JSON escapes are single ones in between.
    uint32_t first = range.first;
    for (uint32_t code = range.first; code <= std::min<uint32_t>(range.last, '\\'); ++code) {
      if (code >= 0x20 && code != '"' && code != '\\') continue;
      if (first < code) plain.push_back({first, code - 1});
      first = code + 1;
      std::string escaped;
      append_json_escaped(escaped, std::string(1, static_cast<char>(code)));
      choices.push_back(terms_.literal(escaped));
    }
    if (first <= range.last) plain.push_back({first, range.last});
  }
  choices.push_back(utf8(plain));
  return terms_.either(choices);
}

Term TextTerms::ended(Term inner, Spelling spelling) const {
  return terms_.unit(terms_.sequence(inner, spelling == Spelling::json ? terms_.literal("\"") : terms_.marker(Marker::close)));
}

Term TextTerms::quoted(Term inner, Spelling spelling) const {
  return spelling == Spelling::raw ? ended(inner, spelling) : terms_.sequence(terms_.literal("\""), ended(inner, spelling));
}

Term TextTerms::other_key(const std::vector<std::string>& taken) const {
  const Term quote = terms_.literal("\"");
  if (taken.empty()) return terms_.sequence(quote, ended_name(terms_.repeat(json_character_, 0, kUnbounded)));
  constexpr std::string_view kWhat = "additionalProperties";
  const Dfa raw = strings_except(terms_, raw_character_, taken, kWhat);
  return terms_.sequence(quote, ended_name(terms_.automaton(json_spelling(raw, kWhat))));
}

Term TextTerms::key(std::string_view name) const {
  std::string text;
  append_json_string(text, name);
  return terms_.literal(text);
}

Term TextTerms::object(std::vector<Members::Member> members, Term extra) const {
  return terms_.sequence({terms_.literal("{"), space_,
                          terms_.members({.members = std::move(members),
                                          .extra = extra,
                                          .separator = terms_.sequence(terms_.literal(","), space_),
                                          .end = terms_.sequence(space_, terms_.literal("}"))})});
}

Term TextTerms::array(const std::vector<Term>& prefix, Term item, int32_t min, int32_t max) const {
  const Term separator = terms_.sequence(terms_.literal(","), space_);
  const Term close = terms_.sequence(space_, terms_.literal("]"));
  const auto fixed = static_cast<int32_t>(prefix.size());
  // What may follow the first `count` elements of the prefix, from the last one backwards.
  const int32_t rest_max = max == kUnbounded ? kUnbounded : std::max(max - fixed, 0);
  const Term more = terms_.sequence(separator, item);
  Term tail = kNothing;
  if (max == kUnbounded || max >= fixed) tail = terms_.sequence(terms_.repeat(more, std::max(min - fixed, 0), rest_max), close);
  for (int32_t count = fixed; count-- > 1;) {
    const Term next = terms_.sequence({separator, prefix[static_cast<size_t>(count)], tail});
    const bool may_end = count >= min && (max == kUnbounded || count <= max);
    const bool may_go_on = max == kUnbounded || count < max;
    tail = terms_.either({may_go_on ? next : kNothing, may_end ? close : kNothing});
  }
  Term filled = kNothing;
  if (max != 0 && fixed > 0) {
    filled = terms_.sequence(prefix.front(), tail);
  } else if (max != 0) {
    filled =
        terms_.sequence({item, terms_.repeat(more, std::max(min - 1, 0), max == kUnbounded ? kUnbounded : max - 1), close});
  }
  return terms_.sequence({terms_.literal("["), space_, terms_.either({filled, min == 0 ? close : kNothing})});
}

Term TextTerms::digit(char first) const { return terms_.bytes(byte_range(static_cast<uint8_t>(first), '9')); }

Term TextTerms::integer() const {
  const Term digits = terms_.sequence(digit('1'), terms_.repeat(digit(), 0, kMaxDigits - 1));
  return terms_.either({terms_.literal("0"), terms_.sequence(terms_.optional(terms_.literal("-")), digits)});
}

Term TextTerms::number() const {
  const Term digits = terms_.sequence(digit('1'), terms_.repeat(digit(), 0, kMaxDigits - 1));
  const Term fraction = terms_.sequence(terms_.literal("."), terms_.repeat(digit(), 1, kMaxFractionDigits));
  const Term exponent = terms_.sequence(
      {terms_.bytes(byte_set("eE")), terms_.optional(terms_.bytes(byte_set("+-"))), terms_.repeat(digit(), 1, 2)});
  return terms_.sequence({terms_.optional(terms_.literal("-")), terms_.either({terms_.literal("0"), digits}),
                          terms_.optional(fraction), terms_.optional(exponent)});
}

Term TextTerms::any_string(Spelling spelling) const {
  return quoted(terms_.repeat(any_character(spelling), 0, kUnbounded), spelling);
}

Term TextTerms::any_object() const { return object({}, member(other_key({}), any_inner_)); }

Term TextTerms::any_array() const { return array({}, any_inner_, 0, kUnbounded); }

void TextTerms::make_any() {
  const Term scalar = terms_.either(
      {terms_.literal("null"), terms_.literal("true"), terms_.literal("false"), number(), any_string(Spelling::json)});
  any_ = scalar;
  for (int depth = 0; depth < kAnyDepth; ++depth) {
    any_inner_ = any_;
    any_ = terms_.either({scalar, any_object(), any_array()});
  }
}

Dfa json_spelling(const Dfa& raw, std::string_view what) {
  // The state of `raw`, and the bytes of an escape so far: none, the backslash, "u", two zeros, the first of the last two
  // digits.
  using State = std::pair<int32_t, int>;
  constexpr int kLastDigit = 5;  // and 6: behind 000 and 001
  const auto written = [&](int32_t state, uint8_t byte) -> std::optional<State> {
    const int32_t next = raw.next(state, byte);
    return next < 0 ? std::nullopt : std::optional(State{next, 0});
  };
  const auto step = [&](const State& state, uint8_t byte) -> std::optional<State> {
    const auto on = [&](int escape) { return State{state.first, escape}; };
    switch (state.second) {
      case 0:
        if (byte == '\\') return on(1);
        if (byte < 0x20 || byte == '"') return std::nullopt;
        return written(state.first, byte);
      case 1: {
        if (byte == 'u') return on(2);
        const auto* found = std::ranges::find(kShortEscapes, static_cast<char>(byte), &std::pair<char, uint8_t>::first);
        return found == kShortEscapes.end() ? std::nullopt : written(state.first, found->second);
      }
      case 2:
      case 3: return byte == '0' ? std::optional(on(state.second + 1)) : std::nullopt;
      case 4: return byte == '0' || byte == '1' ? std::optional(on(kLastDigit + byte - '0')) : std::nullopt;
      default: {
        const size_t digit = kHex.substr(0, 16).find(static_cast<char>(byte));
        if (digit == std::string_view::npos) return std::nullopt;
        return written(state.first, static_cast<uint8_t>(16 * (state.second - kLastDigit) + static_cast<int>(digit)));
      }
    }
  };
  return explore(State(0, 0), what, step, [&](const State& state) { return state.second == 0 && raw.accepting(state.first); });
}

Dfa strings_except(Terms& terms, Term character, const std::vector<std::string>& taken, std::string_view what) {
  // The text so far while it may become one of `taken`.
  using State = std::pair<Term, std::optional<std::string>>;
  const auto step = [&](const State& state, uint8_t byte) -> std::optional<State> {
    const Term next = terms.after(state.first, byte);
    if (next == kNothing) return std::nullopt;
    if (!state.second) return State{next, std::nullopt};
    std::string text = *state.second + static_cast<char>(byte);
    const auto found = std::ranges::lower_bound(taken, text);
    if (found == taken.end() || !found->starts_with(text)) return State{next, std::nullopt};
    return State{next, std::move(text)};
  };
  const auto accepts = [&](const State& state) {
    return terms.nullable(state.first) && !(state.second && std::ranges::binary_search(taken, *state.second));
  };
  return explore(State{terms.repeat(character, 0, kUnbounded), std::string()}, what, step, accepts);
}

}  // namespace weft::grammar
