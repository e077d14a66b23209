// Strict JSON read byte by byte: whether the text so far can still become one value, and where in it the reader is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace weft {

class JsonScanner {
 public:
  // False when the byte cannot stand here, or nesting is deeper than kMaxJsonDepth; the scanner is of no use then. White space
  // around the value is read. Bytes of characters beyond ASCII are taken as they are inside strings.
  [[nodiscard]] bool step(char c);

  // Containers that are open.
  [[nodiscard]] size_t depth() const { return open_.size(); }
  // Between the quotes of a string, or behind its first one.
  [[nodiscard]] bool in_string() const { return state_ >= State::string && state_ <= State::hex; }
  [[nodiscard]] bool in_number() const { return state_ >= State::minus && state_ <= State::exponent_digits; }
  // A key or the end of the object is next; a value is next; a value has ended within a container.
  [[nodiscard]] bool at_key() const { return state_ == State::key_or_end || state_ == State::key; }
  [[nodiscard]] bool at_value() const { return state_ == State::value || state_ == State::value_or_end; }
  [[nodiscard]] bool behind_value() const { return state_ == State::behind; }
  // The value is whole. (A number at the top is whole only once white space follows.)
  [[nodiscard]] bool complete() const { return state_ == State::end; }

 private:
  enum class State : uint8_t {
    value,
    value_or_end,  // behind [
    key_or_end,    // behind {
    key,           // behind , in an object
    colon,
    behind,
    string,
    escape,
    hex,
    minus,
    zero,
    digits,
    point,
    fraction,
    exponent,
    exponent_sign,
    exponent_digits,
    word,  // true, false, null
    end,
  };

  bool open(char c);
  bool close(char c);
  bool begin_value(char c);
  bool begin_string(bool is_key);
  bool number_goes_on(char c);
  [[nodiscard]] bool number_may_end() const;
  void end_value();

  State state_ = State::value;
  std::vector<char> open_;  // { or [
  bool string_is_key_ = false;
  int hex_left_ = 0;
  std::string_view word_left_;
};

}  // namespace weft
