// Numbers between bounds as terms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/text_terms.h"

namespace weft::grammar {

// A decimal number, exactly.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no zeros in front
  std::string fraction;     // no zeros at the end

  // Of a JSON literal; nothing when it has more digits than a number may have.
  [[nodiscard]] static std::optional<Decimal> read(std::string_view literal);
  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
};

struct Bound {
  Decimal value;
  bool low = false;  // else high
  bool exclusive = false;
};

inline constexpr size_t kMaxBounds = 4;

struct NumberRange {
  bool integer = false;
  std::vector<Bound> bounds;  // at most kMaxBounds; all hold
  int32_t multiple_of = 0;    // integers only; 0: any
  int32_t max_fraction = kMaxFractionDigits;

  [[nodiscard]] bool open() const {
    return bounds.empty() && multiple_of == 0 && (integer || max_fraction == kMaxFractionDigits);
  }
};

// kNothing when no number lies there. Numbers with bounds are written without an exponent. `where` names the place in errors.
[[nodiscard]] Term number_in(const TextTerms& text, const NumberRange& range, std::string_view where);

}  // namespace weft::grammar
