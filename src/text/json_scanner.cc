#include "text/json_scanner.h"

namespace weft {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonScanner::step(char c) {
  switch (state_) {
    case State::value: return is_space(c) || begin_value(c);
    case State::value_or_end: return is_space(c) || (c == ']' ? close(c) : begin_value(c));
    case State::key_or_end: return is_space(c) || (c == '}' ? close(c) : c == '"' && begin_string(true));
    case State::key: return is_space(c) || (c == '"' && begin_string(true));
    case State::colon:
      if (c == ':') state_ = State::value;
      return c == ':' || is_space(c);
    case State::behind:
      if (c != ',') return is_space(c) || close(c);
      state_ = open_.back() == '{' ? State::key : State::value;
      return true;
    case State::string:
      if (c == '"') {
        if (string_is_key_) {
          state_ = State::colon;
        } else {
          end_value();
        }
      } else if (c == '\\') {
        state_ = State::escape;
      }
      return static_cast<uint8_t>(c) >= 0x20;
    case State::escape:
      state_ = c == 'u' ? State::hex : State::string;
      hex_left_ = 4;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
    case State::hex:
      if (--hex_left_ == 0) state_ = State::string;
      return is_hex(c);
    case State::word:
      if (word_left_.front() != c) return false;
      word_left_.remove_prefix(1);
      if (word_left_.empty()) end_value();
      return true;
    case State::end: return is_space(c);
    default: break;
  }
  if (number_goes_on(c)) return true;
  if (!number_may_end()) return false;
  end_value();
  return step(c);
}

bool JsonScanner::open(char c) {
  if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) return false;
  open_.push_back(c);
  state_ = c == '{' ? State::key_or_end : State::value_or_end;
  return true;
}

bool JsonScanner::close(char c) {
  if (open_.empty() || c != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  end_value();
  return true;
}

bool JsonScanner::begin_string(bool is_key) {
  string_is_key_ = is_key;
  state_ = State::string;
  return true;
}

bool JsonScanner::begin_value(char c) {
  switch (c) {
    case '{':
    case '[': return open(c);
    case '"': return begin_string(false);
    case '-': state_ = State::minus; return true;
    case '0': state_ = State::zero; return true;
    case 't': word_left_ = "rue"; break;
    case 'f': word_left_ = "alse"; break;
    case 'n': word_left_ = "ull"; break;
    default: state_ = State::digits; return is_digit(c);
  }
  state_ = State::word;
  return true;
}

bool JsonScanner::number_goes_on(char c) {
  const bool is_exponent = c == 'e' || c == 'E';
  const State before = state_;
  switch (state_) {
    case State::minus:
      if (is_digit(c)) state_ = c == '0' ? State::zero : State::digits;
      break;
    case State::zero:
    case State::digits:
      if (state_ == State::digits && is_digit(c)) return true;
      if (c == '.') state_ = State::point;
      if (is_exponent) state_ = State::exponent;
      break;
    case State::point:
      if (is_digit(c)) state_ = State::fraction;
      break;
    case State::fraction:
      if (is_digit(c)) return true;
      if (is_exponent) state_ = State::exponent;
      break;
    case State::exponent:
      if (c == '+' || c == '-') state_ = State::exponent_sign;
      if (is_digit(c)) state_ = State::exponent_digits;
      break;
    case State::exponent_sign:
      if (is_digit(c)) state_ = State::exponent_digits;
      break;
    case State::exponent_digits: return is_digit(c);
    default: break;
  }
  return state_ != before;
}

bool JsonScanner::number_may_end() const {
  return state_ == State::zero || state_ == State::digits || state_ == State::fraction || state_ == State::exponent_digits;
}

void JsonScanner::end_value() { state_ = open_.empty() ? State::end : State::behind; }

}  // namespace weft
