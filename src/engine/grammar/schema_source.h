// A JSON schema as a document: the places of its parts, references, and which keywords are there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/json_value.h"

namespace weft::grammar {

inline constexpr size_t kMaxSchemaValues = 1 << 16;  // JSON values of one schema

// Types of values; a number without a fraction is an integer, and schemas may ask for it alone.
enum TypeBit : uint32_t {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kNumberTypes = kIntegerType | kFractionType,
  kAllTypes = 127,
};

class SchemaSource {
 public:
  // `place` names the document in errors, which go on with a JSON pointer: "response_format.json_schema#/properties/a". Keeps a
  // reference to the document. Throws unsupported beyond kMaxSchemaValues.
  SchemaSource(const JsonValue& root, std::string place);

  [[nodiscard]] const JsonValue& root() const { return root_; }
  [[nodiscard]] std::string where(const JsonValue& value) const;
  [[nodiscard]] std::string where(const JsonValue& schema, std::string_view keyword) const;

  // Throws bad_input for what is neither an object nor a boolean, and unsupported, naming keyword and place, for a keyword that
  // is neither carried out nor one that asks for nothing (title, description, ...).
  void check_keywords(const JsonValue& schema) const;
  // The schema that a `$ref` in `schema` names. Throws bad_input when there is none, unsupported for other documents.
  [[nodiscard]] const JsonValue& target(const JsonValue& schema, const JsonValue& reference) const;

  // Keywords with a check of their kind; nothing when absent.
  [[nodiscard]] uint32_t types(const JsonValue& schema) const;  // kAllTypes when absent
  [[nodiscard]] std::optional<int32_t> count(const JsonValue& schema, std::string_view keyword) const;
  [[nodiscard]] const JsonValue* get(const JsonValue& schema, std::string_view keyword, JsonValue::Kind kind) const;

  template <class... Args>
  [[noreturn]] void refuse(ErrorKind kind, const JsonValue& schema, std::string_view keyword,
                           fmt::format_string<Args...> format, Args&&... args) const {
    fail(kind, "grammar", "{}: {}", where(schema, keyword), fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  struct Parent {
    const JsonValue* value = nullptr;
    std::string key;
  };
  void note(const JsonValue& value);

  const JsonValue& root_;
  std::string place_;
  std::unordered_map<const JsonValue*, Parent> parents_;
};

[[nodiscard]] uint32_t type_of(const JsonValue& value);

}  // namespace weft::grammar
