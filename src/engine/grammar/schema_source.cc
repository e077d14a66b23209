#include "engine/grammar/schema_source.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/grammar/number_terms.h"

namespace weft::grammar {
namespace {

using Kind = JsonValue::Kind;

constexpr std::array<std::string_view, 23> kCarriedOut{"type",
                                                       "enum",
                                                       "const",
                                                       "anyOf",
                                                       "oneOf",
                                                       "allOf",
                                                       "$ref",
                                                       "minimum",
                                                       "maximum",
                                                       "exclusiveMinimum",
                                                       "exclusiveMaximum",
                                                       "multipleOf",
                                                       "minLength",
                                                       "maxLength",
                                                       "pattern",
                                                       "format",
                                                       "items",
                                                       "prefixItems",
                                                       "minItems",
                                                       "maxItems",
                                                       "properties",
                                                       "required",
                                                       "additionalProperties"};
// They ask for nothing: annotations, and places for schemas that others refer to. `discriminator` repeats what oneOf says.
constexpr std::array<std::string_view, 16> kAnnotations{
    "title",   "description", "default",  "examples",  "example",     "$schema", "$id", "$comment",
    "$anchor", "deprecated",  "readOnly", "writeOnly", "definitions", "$defs",   "id",  "discriminator"};

std::string unescape(std::string_view token) {
  std::string text;
  for (size_t i = 0; i < token.size(); ++i) {
    unsigned byte = 0;
    if (token[i] == '%' && i + 2 < token.size() &&
        std::from_chars(&token[i + 1], &token[i + 3], byte, 16).ptr == &token[i + 3]) {
      text += static_cast<char>(byte);
      i += 2;
    } else if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      text += token[++i] == '0' ? '~' : '/';
    } else {
      text += token[i];
    }
  }
  return text;
}

std::string escape(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~' || c == '/') {
      token += c == '~' ? "~0" : "~1";
    } else {
      token += c;
    }
  }
  return token;
}

uint32_t type_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, uint32_t>, 7> kTypes{{{"null", kNullType},
                                                                         {"boolean", kBooleanType},
                                                                         {"integer", kIntegerType},
                                                                         {"number", kNumberTypes},
                                                                         {"string", kStringType},
                                                                         {"array", kArrayType},
                                                                         {"object", kObjectType}}};
  const auto* found = std::ranges::find(kTypes, name, &std::pair<std::string_view, uint32_t>::first);
  return found == kTypes.end() ? 0 : found->second;
}

}  // namespace

uint32_t type_of(const JsonValue& value) {
  switch (value.kind) {
    case Kind::null: return kNullType;
    case Kind::boolean: return kBooleanType;
    case Kind::number: {
      const std::optional<Decimal> number = Decimal::read(value.text);
      return number && number->fraction.empty() ? kIntegerType : kFractionType;
    }
    case Kind::string: return kStringType;
    case Kind::array: return kArrayType;
    case Kind::object: return kObjectType;
  }
  return 0;
}

SchemaSource::SchemaSource(const JsonValue& root, std::string place) : root_(root), place_(std::move(place)) {
  parents_.emplace(&root, Parent{});
  note(root);
}

void SchemaSource::note(const JsonValue& value) {
  if (parents_.size() > kMaxSchemaValues) {
    fail(ErrorKind::unsupported, "grammar", "{}: wanted a schema of at most {} values, found more", place_, kMaxSchemaValues);
  }
  const auto add = [&](const JsonValue& child, std::string key) {
    parents_.emplace(&child, Parent{&value, std::move(key)});
    note(child);
  };
  for (const auto& [key, child] : value.members) add(child, escape(key));
  for (size_t i = 0; i < value.items.size(); ++i) add(value.items[i], std::to_string(i));
}

std::string SchemaSource::where(const JsonValue& value) const {
  std::string path;
  for (const Parent* parent = &parents_.at(&value); parent->value != nullptr; parent = &parents_.at(parent->value)) {
    path.insert(0, "/" + parent->key);
  }
  return fmt::format("{}#{}", place_, path);
}

std::string SchemaSource::where(const JsonValue& schema, std::string_view keyword) const {
  return fmt::format("{}/{}", where(schema), keyword);
}

void SchemaSource::check_keywords(const JsonValue& schema) const {
  if (!schema.is(Kind::object)) {
    fail(ErrorKind::bad_input, "grammar", "{}: wanted a schema (an object or a boolean), found {}", where(schema),
         describe(schema.kind));
  }
  const auto in = [](const auto& list, std::string_view key) { return std::ranges::find(list, key) != list.end(); };
  for (const auto& [key, value] : schema.members) {
    const bool idle = (key == "uniqueItems" || key == "nullable") && value.is(Kind::boolean) && !value.boolean;
    if (idle || in(kAnnotations, key) || key.starts_with("x-")) continue;
    if (in(kCarriedOut, key)) continue;
    refuse(ErrorKind::unsupported, schema, key, "this keyword is not supported");
  }
}

const JsonValue& SchemaSource::target(const JsonValue& schema, const JsonValue& reference) const {
  if (!reference.is(Kind::string))
    refuse(ErrorKind::bad_input, schema, "$ref", "wanted a string, found {}", describe(reference.kind));
  std::string_view rest = reference.text;
  if (!rest.starts_with('#'))
    refuse(ErrorKind::unsupported, schema, "$ref", "wanted a place in this schema (#...), found '{}'", rest);
  rest.remove_prefix(1);
  const JsonValue* at = &root_;
  while (at != nullptr && !rest.empty()) {
    if (rest.front() != '/')
      refuse(ErrorKind::unsupported, schema, "$ref", "wanted a JSON pointer, found '{}'", reference.text);
    rest.remove_prefix(1);
    const std::string_view token = rest.substr(0, rest.find('/'));
    rest.remove_prefix(token.size());
    const std::string key = unescape(token);
    size_t index = 0;
    const char* end = key.data() + key.size();
    if (at->is(Kind::array)) {
      const bool number = !key.empty() && std::from_chars(key.data(), end, index).ptr == end;
      at = number && index < at->items.size() ? &at->items[index] : nullptr;
    } else {
      at = at->find(key);
    }
  }
  if (at == nullptr) refuse(ErrorKind::bad_input, schema, "$ref", "wanted a schema at '{}', found nothing", reference.text);
  return *at;
}

uint32_t SchemaSource::types(const JsonValue& schema) const {
  const JsonValue* value = schema.find("type");
  if (value == nullptr) return kAllTypes;
  uint32_t types = 0;
  const auto add = [&](const JsonValue& name) {
    const uint32_t found = name.is(Kind::string) ? type_named(name.text) : 0;
    if (found == 0) refuse(ErrorKind::bad_input, schema, "type", "wanted the name of a type, found {}", write_json(name));
    types |= found;
  };
  if (value->is(Kind::array)) {
    for (const JsonValue& name : value->items) add(name);
  } else {
    add(*value);
  }
  return types;
}

std::optional<int32_t> SchemaSource::count(const JsonValue& schema, std::string_view keyword) const {
  const JsonValue* value = get(schema, keyword, Kind::number);
  if (value == nullptr) return std::nullopt;
  constexpr int32_t kMost = 1'000'000;
  const std::optional<Decimal> number = Decimal::read(value->text);
  if (!number || number->negative || !number->fraction.empty()) {
    refuse(ErrorKind::bad_input, schema, keyword, "wanted a whole number of at least 0, found {}", value->text);
  }
  int32_t found = kMost;
  const std::string& digits = number->whole;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), found);
  if (error != std::errc() || found > kMost) {
    refuse(ErrorKind::unsupported, schema, keyword, "wanted at most {}, found {}", kMost, value->text);
  }
  return found;
}

const JsonValue* SchemaSource::get(const JsonValue& schema, std::string_view keyword, Kind kind) const {
  const JsonValue* value = schema.find(keyword);
  if (value != nullptr && !value->is(kind)) {
    refuse(ErrorKind::bad_input, schema, keyword, "wanted {}, found {}", describe(kind), describe(value->kind));
  }
  return value;
}

}  // namespace weft::grammar
