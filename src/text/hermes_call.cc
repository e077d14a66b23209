#include "text/hermes_call.h"

#include <optional>
#include <utility>

#include "text/json_value.h"

namespace weft {
namespace {

// The text of a JSON string with its quotes.
std::optional<std::string> string_in(std::string_view raw) {
  std::optional<JsonValue> value = try_parse_json_value(raw);
  if (!value || !value->is(JsonValue::Kind::string)) return std::nullopt;
  return std::move(value->text);
}

}  // namespace

size_t HermesCall::feed(std::string_view text, std::string& arguments) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (status_ == Status::bad) return i;
    if (!take(text[i], arguments)) status_ = Status::bad;
  }
  return text.size();
}

bool HermesCall::take(char c, std::string& arguments) {
  if (part_ == Part::none && scanner_.depth() == 0 && scanner_.at_value() && c != '{')
    return scanner_.step(c) && scanner_.at_value();
  const bool at_top = part_ == Part::none && scanner_.depth() == 1;
  const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
  if (at_top && scanner_.at_key() && c == '"') {
    part_ = Part::key;
    raw_.clear();
  } else if (at_top && scanner_.at_value() && !space) {
    part_ = Part::value;
    if (!begin_value(c)) return false;
  }
  const bool was_number = scanner_.in_number() && scanner_.depth() == 1;
  if (!scanner_.step(c)) return false;
  if (part_ == Part::value && was_number && !scanner_.in_number() && !end_value(arguments)) return false;
  if (part_ == Part::key) {
    raw_ += c;
    if (!scanner_.in_string() && !end_key()) return false;
  } else if (part_ == Part::value) {
    if (use_ == Use::arguments && is_object_) {
      send({&c, 1}, arguments);
    } else if (use_ != Use::ignore) {
      raw_ += c;
    }
    if (scanner_.depth() == 1 && scanner_.behind_value() && !end_value(arguments)) return false;
  }
  return !scanner_.complete() || status_ == Status::complete || end_object(arguments);
}

bool HermesCall::begin_value(char c) {
  raw_.clear();
  is_object_ = c == '{';
  if (use_ != Use::arguments) return true;
  return !std::exchange(has_arguments_, true);
}

bool HermesCall::end_key() {
  part_ = Part::none;
  const std::optional<std::string> key = string_in(raw_);
  if (!key) return false;
  use_ = *key == "name" ? Use::name : *key == "arguments" || *key == "parameters" ? Use::arguments : Use::ignore;
  return true;
}

bool HermesCall::end_value(std::string& arguments) {
  part_ = Part::none;
  if (use_ == Use::arguments) return is_object_ || end_arguments(arguments);
  if (use_ == Use::ignore) return true;
  std::optional<std::string> name = string_in(raw_);
  if (!name || name->empty() || !name_.empty()) return false;
  name_ = std::move(*name);
  send(std::exchange(unsent_, {}), arguments);
  return true;
}

bool HermesCall::end_arguments(std::string& arguments) {
  if (raw_ == "null") {
    send("{}", arguments);
    return true;
  }
  const std::optional<std::string> text = string_in(raw_);
  if (!text) return false;
  const std::optional<JsonValue> value = try_parse_json_value(*text, {.duplicate_keys = true});
  if (!value || !value->is(JsonValue::Kind::object)) return false;
  send(*text, arguments);
  return true;
}

bool HermesCall::end_object(std::string& arguments) {
  if (name_.empty()) return false;
  if (!has_arguments_) send("{}", arguments);
  status_ = Status::complete;
  return true;
}

void HermesCall::send(std::string_view text, std::string& arguments) {
  if (name_.empty()) {
    unsent_ += text;
  } else {
    arguments += text;
  }
}

}  // namespace weft
