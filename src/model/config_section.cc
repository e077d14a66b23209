#include "model/config_section.h"

#include <cmath>
#include <utility>

namespace weft {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

Section::Section(const Json& object, std::string path, std::string_view place)
    : object_(object), path_(std::move(path)), place_(place) {
  if (!object.is_object())
    fail(ErrorKind::bad_checkpoint, place_, "{}: wanted an object, found {}", path_.empty() ? "configuration" : path_,
         shown(object));
}

std::string Section::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const Json& Section::at(std::string_view key, std::string_view wanted) const {
  const auto found = object_.find(key);
  if (found == object_.end()) fail(ErrorKind::bad_checkpoint, place_, "{}: missing, wanted {}", name(key), wanted);
  return *found;
}

int64_t Section::integer(std::string_view key, int64_t low, int64_t high) const {
  const std::string wanted = fmt::format("an integer in {}..{}", low, high);
  const Json& value = at(key, wanted);
  const bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) refuse(key, wanted);
  return value.get<int64_t>();
}

float Section::positive(std::string_view key) const {
  const Json& value = at(key, "a positive number");
  if (!value.is_number()) refuse(key, "a positive number");
  const float number = value.get<float>();
  if (!std::isfinite(number) || number <= 0.0F) refuse(key, "a positive finite number");
  return number;
}

bool Section::boolean(std::string_view key) const {
  const Json& value = at(key, "true or false");
  if (!value.is_boolean()) refuse(key, "true or false");
  return value.get<bool>();
}

std::string Section::text(std::string_view key, std::string_view wanted) const {
  const Json& value = at(key, wanted);
  if (!value.is_string()) refuse(key, wanted);
  return value.get<std::string>();
}

std::vector<int64_t> Section::eos_ids(int64_t vocab_size) const {
  constexpr std::string_view kKey = "eos_token_id";
  constexpr std::string_view kWanted = "a token id or a list of token ids below vocab_size";
  const Json& value = at(kKey, kWanted);
  std::vector<int64_t> ids;
  const auto take = [&](const Json& one) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0 || one.get<int64_t>() >= vocab_size) refuse(kKey, kWanted);
    ids.push_back(one.get<int64_t>());
  };
  if (value.is_array()) {
    for (const Json& one : value) take(one);
    if (ids.empty()) refuse(kKey, kWanted);
  } else {
    take(value);
  }
  return ids;
}

void Section::refuse(std::string_view key, std::string_view wanted, ErrorKind kind) const {
  fail(kind, place_, "{}: wanted {}, found {}", name(key), wanted, shown(at(key, wanted)));
}

}  // namespace weft
