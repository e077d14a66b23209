// A JSON-schema validator for tests: the keywords read straight from their definitions, with nothing of src/engine/grammar. The
// verdicts of another program in tests/fixtures/grammar/schemas.json show that it judges as that one does.
#pragma once

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>

#include "base/json.h"

namespace weft::engine_test {

class SchemaOracle {
 public:
  explicit SchemaOracle(const Json& root) : root_(root) {}

  [[nodiscard]] bool valid(const Json& value) const { return valid(root_, value); }

 private:
  static bool is_type(const std::string& type, const Json& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "number") return value.is_number();
    if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }
  // Without an order of members.
  static bool same(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

  static bool format_holds(const std::string& format, const std::string& text) {
    if (format == "date") {
      if (!std::regex_match(text, std::regex(R"(\d{4}-\d\d-\d\d)"))) return false;
      const int year = std::stoi(text.substr(0, 4));
      const int month = std::stoi(text.substr(5, 2));
      const int day = std::stoi(text.substr(8, 2));
      const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
      const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
      return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1] + (month == 2 && leap ? 1 : 0);
    }
    if (format == "uuid") return std::regex_match(text, std::regex("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"));
    if (format == "ipv4") {
      std::smatch parts;
      if (!std::regex_match(text, parts, std::regex(R"((\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3}))"))) return false;
      return std::all_of(parts.begin() + 1, parts.end(), [](const auto& part) { return std::stoi(part) <= 255; });
    }
    return false;
  }

  [[nodiscard]] bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    const auto all = [&](const Json& list, const auto& test) { return std::all_of(list.begin(), list.end(), test); };
    const auto holds = [&](const Json& part) { return valid(part, value); };
    if (schema.contains("$ref")) {
      const std::string pointer = schema["$ref"].get<std::string>().substr(1);
      if (!valid(root_.at(Json::json_pointer(pointer)), value)) return false;
    }
    if (schema.contains("allOf") && !all(schema["allOf"], holds)) return false;
    if (schema.contains("anyOf") && std::none_of(schema["anyOf"].begin(), schema["anyOf"].end(), holds)) return false;
    if (schema.contains("oneOf") && std::count_if(schema["oneOf"].begin(), schema["oneOf"].end(), holds) != 1) return false;
    if (schema.contains("const") && !same(schema["const"], value)) return false;
    if (schema.contains("enum")) {
      const Json& list = schema["enum"];
      if (std::none_of(list.begin(), list.end(), [&](const Json& one) { return same(one, value); })) return false;
    }
    if (schema.contains("type")) {
      const Json names = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      if (std::none_of(names.begin(), names.end(), [&](const Json& name) { return is_type(name, value); })) return false;
    }
    if (value.is_number()) return number(schema, value.get<double>());
    if (value.is_string()) return string(schema, value.get<std::string>());
    if (value.is_array()) return array(schema, value);
    if (value.is_object()) return object(schema, value);
    return true;
  }

  static bool number(const Json& schema, double value) {
    return value >= schema.value("minimum", value) && value <= schema.value("maximum", value) &&
           value > schema.value("exclusiveMinimum", -INFINITY) && value < schema.value("exclusiveMaximum", INFINITY) &&
           (!schema.contains("multipleOf") || std::fmod(value, schema["multipleOf"].get<double>()) == 0.0);
  }

  static bool string(const Json& schema, const std::string& value) {
    const auto length = std::count_if(value.begin(), value.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (length < schema.value("minLength", int64_t{0}) || length > schema.value("maxLength", int64_t{1} << 40)) return false;
    if (schema.contains("format") && !format_holds(schema["format"], value)) return false;
    return !schema.contains("pattern") || std::regex_search(value, std::regex(schema["pattern"].get<std::string>()));
  }

  [[nodiscard]] bool array(const Json& schema, const Json& value) const {
    const auto size = static_cast<int64_t>(value.size());
    if (size < schema.value("minItems", int64_t{0}) || size > schema.value("maxItems", size)) return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size()) {
        if (!valid(prefix[i], value[i])) return false;
      } else if (schema.contains("items") && !valid(schema["items"], value[i])) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool object(const Json& schema, const Json& value) const {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)) {
        if (!valid(properties[name], member)) return false;
      } else if (schema.contains("additionalProperties") && !valid(schema["additionalProperties"], member)) {
        return false;
      }
    }
    return true;
  }

  const Json& root_;
};

}  // namespace weft::engine_test
