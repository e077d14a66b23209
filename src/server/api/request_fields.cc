#include "server/api/request_fields.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "base/utf8.h"

namespace weft::api {

using Kind = JsonValue::Kind;

JsonValue parse_body(std::string_view body) {
  JsonValue root;
  const std::optional<Failure> failure = guard([&] { root = parse_json_value(body, "request"); });
  if (failure) {
    if (failure->kind != ErrorKind::bad_input) failure->raise();
    throw bad_request("the body is no JSON: " + error_of(*failure).message, std::nullopt, "invalid_json");
  }
  if (!root.is(Kind::object)) {
    throw bad_request(fmt::format("the body: wanted an object, found {}", describe(root.kind)), std::nullopt, "invalid_json");
  }
  return root;
}

std::string shown(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  if (value->is(Kind::string)) return fmt::format("'{}'", shortened(value->text));
  if (value->is(Kind::number)) return shortened(value->text);
  if (value->is(Kind::boolean)) return value->boolean ? "true" : "false";
  return std::string(describe(value->kind));
}

std::optional<int64_t> whole_number_of(const JsonValue& value, int64_t low, int64_t high) {
  int64_t number = 0;
  const char* end = value.text.data() + value.text.size();
  const auto [at, error] = std::from_chars(value.text.data(), end, number);
  if (!value.is(Kind::number) || error != std::errc() || at != end || number < low || number > high) return std::nullopt;
  return number;
}

std::optional<double> number_of(const JsonValue& value) {
  double number = 0.0;
  const char* end = value.text.data() + value.text.size();
  const auto [at, error] = std::from_chars(value.text.data(), end, number);
  if (!value.is(Kind::number) || error != std::errc() || at != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

RequestFields::RequestFields(const JsonValue& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is(Kind::object)) {
    throw bad_request(fmt::format("{}: wanted an object, found {}", path_.empty() ? "the body" : path_, shown(&object)),
                      path_.empty() ? std::nullopt : std::optional(path_));
  }
}

std::string RequestFields::where(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void RequestFields::refuse(std::string_view key, std::string_view wanted, const JsonValue* found) const {
  throw bad_request(fmt::format("{}: wanted {}, found {}", where(key), wanted, shown(found)), where(key));
}

const JsonValue* RequestFields::get(std::string_view key) const {
  const JsonValue* value = object_.find(key);
  return value == nullptr || value->is(Kind::null) ? nullptr : value;
}

const JsonValue* RequestFields::get(std::string_view key, Kind kind) const {
  const JsonValue* value = get(key);
  if (value != nullptr && !value->is(kind)) refuse(key, describe(kind), value);
  return value;
}

std::optional<bool> RequestFields::boolean(std::string_view key) const {
  const JsonValue* value = get(key, Kind::boolean);
  return value == nullptr ? std::nullopt : std::optional(value->boolean);
}

std::optional<std::string> RequestFields::string(std::string_view key) const {
  const JsonValue* value = get(key, Kind::string);
  return value == nullptr ? std::nullopt : std::optional(value->text);
}

std::optional<int64_t> RequestFields::integer(std::string_view key, int64_t low, int64_t high) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = whole_number_of(*value, low, high);
  if (!number) {
    refuse(
        key,
        high == INT64_MAX ? fmt::format("an integer of at least {}", low) : fmt::format("an integer from {} to {}", low, high),
        value);
  }
  return number;
}

std::vector<int64_t> RequestFields::integers(std::string_view key, int64_t low, int64_t high) const {
  const JsonValue* list = get(key, Kind::array);
  std::vector<int64_t> made;
  if (list == nullptr) return made;
  for (const JsonValue& item : list->items) {
    const std::optional<int64_t> number = whole_number_of(item, low, high);
    if (!number) refuse(key, fmt::format("integers from {} to {}", low, high), &item);
    made.push_back(*number);
  }
  return made;
}

}  // namespace weft::api
