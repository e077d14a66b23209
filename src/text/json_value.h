// JSON that keeps what the client wrote: the literal of each number, the order of keys, the place of each value in its source.
//
// The general reader (base/json.h) turns 1e2 into a double, which would come back as 100.0; the prompt must say 1e2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace weft {

struct JsonMember;

struct JsonValue {
  enum class Kind : uint8_t { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  bool boolean = false;
  std::string text;                 // string: decoded UTF-8; number: the literal
  std::vector<JsonValue> items;     // array
  std::vector<JsonMember> members;  // object, in the order of the source
  size_t begin = 0;                 // bytes [begin, end) of the source
  size_t end = 0;

  [[nodiscard]] bool is(Kind k) const { return kind == k; }
  // The member `key` of an object (the last of that name), or nullptr; nullptr for any other kind too.
  [[nodiscard]] const JsonValue* find(std::string_view key) const;
};

// Not a std::pair, which clang refuses here: it would have to be complete before JsonValue is.
struct JsonMember {
  std::string first;  // the key
  JsonValue second;
};

// "null", "a boolean", "a number", "a string", "an array", "an object"
[[nodiscard]] std::string_view describe(JsonValue::Kind kind);

struct JsonRules {
  bool duplicate_keys = false;  // allowed
  int max_depth = kMaxJsonDepth;
};

// Reads strict JSON (RFC 8259) in UTF-8. A lone surrogate escape becomes U+FFFD (R22). Throws Error(bad_input) with `place` and
// the byte offset; also for ill-formed UTF-8, nesting above the limit, and a key that appears twice in one object unless
// allowed.
[[nodiscard]] JsonValue parse_json_value(std::string_view text, std::string_view place, JsonRules rules = {});

// The same for text that need not be JSON: nothing when it is not, or nests too deep.
[[nodiscard]] std::optional<JsonValue> try_parse_json_value(std::string_view text, JsonRules rules = {});

struct JsonStyle {
  bool spaced = false;     // ", " and ": " instead of "," and ":"
  bool sort_keys = false;  // by code point, at all depths
};

// Non-ASCII is kept, numbers keep their literal, nothing is escaped that need not be.
[[nodiscard]] std::string write_json(const JsonValue& value, JsonStyle style = {});

// Appends `text` (well-formed UTF-8) escaped for the inside of a JSON string, without quotes.
void append_json_escaped(std::string& out, std::string_view text);
// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace weft
