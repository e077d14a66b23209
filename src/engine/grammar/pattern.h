// Regular expressions of `pattern` (ECMA-262 without its context-dependent parts) as terms.
#pragma once

#include <string_view>

#include "engine/grammar/text_terms.h"

namespace weft::grammar {

inline constexpr size_t kMaxPatternBytes = 4096;
inline constexpr int32_t kMaxPatternCount = 10'000;  // in {m,n}

// The strings in which the expression matches somewhere, without quotes. Known: literals, '.', classes with ranges and
// negation,
// \d \w \s and their opposites, \t \n \r \f \v \0 \xHH \uHHHH \u{H..}, groups, '|', '*', '+', '?', {m}, {m,}, {m,n} and their
// lazy forms, '^' and '$' at the ends of a top-level alternative. \d and \w are ASCII, as in ECMA-262. Anything else throws
// unsupported, and what is no expression bad_input, naming `where` and the offset.
[[nodiscard]] Term pattern_text(const TextTerms& text, std::string_view expression, Spelling spelling, std::string_view where);

}  // namespace weft::grammar
