// Typed fields of the JSON of a request. Null counts as absent. All throw ApiError (400) naming the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "text/json_value.h"

namespace weft::api {

// The body of a request: one JSON object.
[[nodiscard]] JsonValue parse_body(std::string_view body);

class RequestFields {
 public:
  // `path` of the object within the request; empty: the request itself.
  explicit RequestFields(const JsonValue& object, std::string path = "");

  [[nodiscard]] const JsonValue* get(std::string_view key) const;  // nullptr: absent or null
  [[nodiscard]] const JsonValue* get(std::string_view key, JsonValue::Kind kind) const;
  void check(std::string_view key, JsonValue::Kind kind) const { static_cast<void>(get(key, kind)); }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;
  [[nodiscard]] std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  [[nodiscard]] std::vector<int64_t> integers(std::string_view key, int64_t low, int64_t high) const;

  [[nodiscard]] std::string where(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view wanted, const JsonValue* found) const;

 private:
  const JsonValue& object_;
  std::string path_;
};

// A whole number in [low, high], or nothing.
[[nodiscard]] std::optional<int64_t> whole_number_of(const JsonValue& value, int64_t low, int64_t high);
// A finite number, or nothing.
[[nodiscard]] std::optional<double> number_of(const JsonValue& value);
// "'text'", "12", "an array": what a message says was found; long ones are cut.
[[nodiscard]] std::string shown(const JsonValue* value);

}  // namespace weft::api
