#include "engine/grammar/number_terms.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace weft::grammar {
namespace {

enum class Part : uint8_t { start, minus, zero, whole, point, fraction };

// A literal as far as it was written, and how its magnitude compares with those of the bounds.
struct State {
  Part part = Part::start;
  bool negative = false;
  bool nonzero = false;
  int32_t digits = 0;  // of the part
  int32_t remainder = 0;
  std::array<int, kMaxBounds> order{};  // -1, 0, 1: digits so far against the bound's digits at the same place
  friend auto operator<=>(const State&, const State&) = default;
};

int sign(int value) { return (value > 0) - (value < 0); }

char digit_at(const std::string& digits, int32_t index) {
  return static_cast<size_t>(index) < digits.size() ? digits[static_cast<size_t>(index)] : '0';
}

class Machine {
 public:
  explicit Machine(const NumberRange& range) : range_(range) {}

  [[nodiscard]] std::optional<State> step(State state, uint8_t byte) const {
    if (byte == '-') {
      if (state.part != Part::start) return std::nullopt;
      state.part = Part::minus;
      state.negative = true;
      return state;
    }
    if (byte == '.') return range_.integer || range_.max_fraction == 0 ? std::nullopt : end_whole(state);
    if (byte < '0' || byte > '9') return std::nullopt;
    switch (state.part) {
      case Part::zero: return std::nullopt;
      case Part::start:
      case Part::minus: state.part = byte == '0' ? Part::zero : Part::whole; break;
      case Part::point: state.part = Part::fraction; break;
      case Part::whole:
        if (state.digits == kMaxDigits) return std::nullopt;
        break;
      case Part::fraction:
        if (state.digits == range_.max_fraction) return std::nullopt;
        break;
    }
    const bool in_fraction = state.part == Part::fraction;
    for (size_t i = 0; i < range_.bounds.size(); ++i) {
      if (state.order[i] != 0) continue;
      const Decimal& value = range_.bounds[i].value;
      state.order[i] = sign(static_cast<int>(byte) - digit_at(in_fraction ? value.fraction : value.whole, state.digits));
    }
    ++state.digits;
    state.nonzero = state.nonzero || byte != '0';
    if (range_.multiple_of != 0) state.remainder = (state.remainder * 10 + byte - '0') % range_.multiple_of;
    return state;
  }

  [[nodiscard]] bool accepts(State state) const {
    if (state.part == Part::zero || state.part == Part::whole) {
      if (range_.integer && state.negative && !state.nonzero) return false;
      compare_whole(state);
      state.digits = 0;
    } else if (state.part != Part::fraction) {
      return false;
    }
    if (state.remainder != 0) return false;
    for (size_t i = 0; i < range_.bounds.size(); ++i) {
      const Bound& bound = range_.bounds[i];
      const int order = compare(state, i);
      if (order == 0 ? bound.exclusive : (order < 0) == bound.low) return false;
    }
    return true;
  }

 private:
  // The longer whole part is the larger one.
  void compare_whole(State& state) const {
    for (size_t i = 0; i < range_.bounds.size(); ++i) {
      const auto digits = static_cast<int32_t>(range_.bounds[i].value.whole.size());
      if (state.digits != digits) state.order[i] = sign(state.digits - digits);
    }
  }

  [[nodiscard]] std::optional<State> end_whole(State state) const {
    if (state.part != Part::zero && state.part != Part::whole) return std::nullopt;
    compare_whole(state);
    state.part = Part::point;
    state.digits = 0;
    return state;
  }

  // The value against a bound, at the end of the literal.
  [[nodiscard]] int compare(const State& state, size_t i) const {
    const Decimal& bound = range_.bounds[i].value;
    if (!state.nonzero || bound.is_zero() || state.negative != bound.negative) {
      const int value_sign = !state.nonzero ? 0 : (state.negative ? -1 : 1);
      const int bound_sign = bound.is_zero() ? 0 : (bound.negative ? -1 : 1);
      return sign(value_sign - bound_sign);
    }
    int order = state.order[i];
    if (order == 0 && static_cast<size_t>(state.digits) < bound.fraction.size()) order = -1;
    return state.negative ? -order : order;
  }

  const NumberRange& range_;
};

}  // namespace

std::optional<Decimal> Decimal::read(std::string_view literal) {
  Decimal value;
  value.negative = literal.starts_with('-');
  if (value.negative) literal.remove_prefix(1);
  const size_t mark = std::min(literal.find_first_of("eE"), literal.size());
  std::string_view exponent_text = literal.substr(std::min(mark + 1, literal.size()));
  if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);
  int exponent = 0;
  if (!exponent_text.empty()) {
    const auto [end, error] = std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
    if (error != std::errc() || exponent < -kMaxFractionDigits || exponent > kMaxDigits) return std::nullopt;
  }
  const std::string_view digits = literal.substr(0, mark);
  const size_t point = std::min(digits.find('.'), digits.size());
  std::string whole(digits.substr(0, point));
  std::string fraction(digits.substr(std::min(point + 1, digits.size())));
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction.front();
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.resize(fraction.find_last_not_of('0') + 1);
  if (whole.size() > kMaxDigits || fraction.size() > kMaxFractionDigits) return std::nullopt;
  if (!whole.empty()) value.whole = std::move(whole);
  value.fraction = std::move(fraction);
  return value;
}

Term number_in(const TextTerms& text, const NumberRange& range, std::string_view where) {
  if (range.open()) return range.integer ? text.integer() : text.number();
  const Machine machine(range);
  return text.terms().automaton(explore(
      State{}, where, [&](const State& state, uint8_t byte) { return machine.step(state, byte); },
      [&](const State& state) { return machine.accepts(state); }));
}

}  // namespace weft::grammar
