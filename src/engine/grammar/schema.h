// JSON schemas (draft 2020-12) as terms.
//
// Carried out: type (a name or a list), enum, const, anyOf, oneOf (whose branches must exclude each other by type, by
// constants, or by a required member that does), allOf, $ref inside the document (recursive too), minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, multipleOf (integers; powers of ten for fractions), minLength, maxLength, pattern, format
// (date, time, date-time, uuid, ipv4, email, hostname, uri), items, prefixItems, minItems, maxItems, properties, required,
// additionalProperties. Any other keyword that asks for something is refused with its place.
//
// The grammar is narrower than the schema where that loses no meaning: members that a schema with `properties` does not declare
// are written only where `additionalProperties` invites them; numbers have at most kMaxDigits digits; a constant is written in
// one way. Members may come in any order.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/number_terms.h"
#include "engine/grammar/schema_source.h"
#include "engine/grammar/text_terms.h"

namespace weft::grammar {

inline constexpr size_t kMaxVariants = 256;        // alternatives of one place, anyOf within anyOf multiplied out
inline constexpr size_t kMaxExpansions = 1 << 16;  // schemas looked at, each as often as it is
inline constexpr size_t kMaxRules = 4096;

// A value as the text of an argument: "string" holds raw text, the others JSON; each ends with <|close|>.
struct TypedValue {
  std::string_view type;
  Term value = kNothing;
};

struct Argument {
  std::string key;
  bool required = false;
  std::vector<TypedValue> values;
};

// One of the alternatives of an object: arguments in any order.
struct ArgumentList {
  std::vector<Argument> arguments;
  std::vector<TypedValue> extra;  // of arguments that are not declared; empty: there are none
};

class SchemaCompiler {
 public:
  // `place` names the schema in errors. Keeps references.
  SchemaCompiler(const TextTerms& text, const JsonValue& root, std::string place);

  // Any value that fulfils the schema, as JSON.
  [[nodiscard]] Term json();
  // The members of an object that fulfils the schema. Throws bad_input when no object does.
  [[nodiscard]] std::vector<ArgumentList> arguments();
  // Any object that fulfils the schema, as JSON. Throws likewise.
  [[nodiscard]] Term object_json();
  // Must be called once everything above was: compiles what is named and not yet there.
  void finish();

 private:
  using Schemas = std::vector<const JsonValue*>;  // all of them hold
  struct Item {
    const JsonValue* schema = nullptr;
    Schemas chain;  // the schemas that led here without a value in between
    int done = 0;   // keywords with branches that were taken: anyOf, oneOf
  };
  struct Property {
    std::string name;
    bool required = false;
    Schemas schemas;
  };
  struct ObjectShape {
    std::vector<Property> properties;
    bool open = false;
    Schemas extra;
  };

  [[noreturn]] void refuse_no_object() const;
  [[nodiscard]] std::vector<Schemas> variants(const Schemas& schemas);
  void expand(Schemas done, std::vector<Item> open, std::vector<Schemas>& out);
  void branch(const Schemas& done, const std::vector<Item>& open, const Item& from, const JsonValue& branches, int keyword,
              std::vector<Schemas>& out);
  void check_exclusive(const JsonValue& schema, const JsonValue& branches);
  [[nodiscard]] bool exclude(const Schemas& a, const Schemas& b, int depth);

  [[nodiscard]] Term value(Schemas schemas);
  [[nodiscard]] Term choices(const Schemas& schemas, uint32_t types, Spelling strings);
  [[nodiscard]] Term variant(const Schemas& schemas, uint32_t types, Spelling strings);
  [[nodiscard]] uint32_t types_of(const Schemas& schemas) const;
  // The values that enum and const leave, or nothing when neither is there.
  [[nodiscard]] std::optional<Schemas> constants(const Schemas& schemas) const;
  [[nodiscard]] Term constant(const JsonValue& value, const Schemas& schemas, Spelling strings) const;
  [[nodiscard]] Term number(const Schemas& schemas, bool integer) const;
  [[nodiscard]] Term string(const Schemas& schemas, Spelling spelling) const;
  [[nodiscard]] Term array(const Schemas& schemas);
  [[nodiscard]] Term object(const Schemas& schemas);
  [[nodiscard]] ObjectShape shape(const Schemas& schemas) const;
  [[nodiscard]] std::vector<TypedValue> typed_values(const Schemas& schemas);

  const TextTerms& text_;
  Terms& terms_;
  SchemaSource source_;
  std::map<Schemas, Term> rules_;
  std::vector<std::pair<Term, Schemas>> named_;  // rules without a body yet
  size_t expansions_ = 0;
};

}  // namespace weft::grammar
