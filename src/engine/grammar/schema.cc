#include "engine/grammar/schema.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace weft::grammar {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMaxChain = 64;  // references and branches without a value in between
constexpr int kMaxExclusionDepth = 8;
constexpr std::array<std::string_view, 2> kBranches{"anyOf", "oneOf"};

// Keywords by the types whose values they restrict.
constexpr std::array<std::pair<std::string_view, uint32_t>, 16> kRestrictions{{{"minimum", kNumberTypes},
                                                                               {"maximum", kNumberTypes},
                                                                               {"exclusiveMinimum", kNumberTypes},
                                                                               {"exclusiveMaximum", kNumberTypes},
                                                                               {"multipleOf", kNumberTypes},
                                                                               {"minLength", kStringType},
                                                                               {"maxLength", kStringType},
                                                                               {"pattern", kStringType},
                                                                               {"format", kStringType},
                                                                               {"items", kArrayType},
                                                                               {"prefixItems", kArrayType},
                                                                               {"minItems", kArrayType},
                                                                               {"maxItems", kArrayType},
                                                                               {"properties", kObjectType},
                                                                               {"required", kObjectType},
                                                                               {"additionalProperties", kObjectType}}};

bool contains(const std::vector<const JsonValue*>& list, const JsonValue* value) {
  return std::ranges::find(list, value) != list.end();
}

bool equal(const JsonValue& a, const JsonValue& b) {
  return write_json(a, {.spaced = false, .sort_keys = true}) == write_json(b, {.spaced = false, .sort_keys = true});
}

}  // namespace

SchemaCompiler::SchemaCompiler(const TextTerms& text, const JsonValue& root, std::string place)
    : text_(text), terms_(text.terms()), source_(root, std::move(place)) {}

Term SchemaCompiler::json() { return value({&source_.root()}); }

Term SchemaCompiler::object_json() {
  const Term object = choices({&source_.root()}, kObjectType, Spelling::json);
  if (object == kNothing) refuse_no_object();
  return object;
}

void SchemaCompiler::finish() {
  while (!named_.empty()) {
    const auto [rule, schemas] = std::move(named_.back());
    named_.pop_back();
    terms_.define(rule, choices(schemas, kAllTypes, Spelling::json));
  }
}

// ---- what holds at one place
// ----------------------------------------------------------------------------------------------------

std::vector<SchemaCompiler::Schemas> SchemaCompiler::variants(const Schemas& schemas) {
  std::vector<Item> open;
  for (auto schema = schemas.rbegin(); schema != schemas.rend(); ++schema) open.push_back({*schema, {}, 0});
  std::vector<Schemas> out;
  expand({}, std::move(open), out);
  return out;
}

void SchemaCompiler::expand(Schemas done, std::vector<Item> open, std::vector<Schemas>& out) {
  while (!open.empty()) {
    Item item = std::move(open.back());
    open.pop_back();
    const JsonValue& schema = *item.schema;
    if (schema.is(Kind::boolean)) {
      if (!schema.boolean) return;
      continue;
    }
    if (item.done == 0) {
      if (++expansions_ > kMaxExpansions) {
        fail(ErrorKind::unsupported, "grammar", "{}: wanted a schema with at most {} combinations of its parts, found more",
             source_.where(source_.root()), kMaxExpansions);
      }
      source_.check_keywords(schema);
      if (contains(item.chain, &schema) || item.chain.size() >= kMaxChain) {
        fail(ErrorKind::bad_input, "grammar", "{}: wanted a schema that does not stand for itself, found one that does",
             source_.where(schema));
      }
      if (contains(done, &schema)) continue;
      done.push_back(&schema);
      item.chain.push_back(&schema);
      if (const JsonValue* reference = schema.find("$ref"))
        open.push_back({&source_.target(schema, *reference), item.chain, 0});
      if (const JsonValue* all = source_.get(schema, "allOf", Kind::array)) {
        for (const JsonValue& part : all->items) open.push_back({&part, item.chain, 0});
      }
    }
    for (int keyword = item.done; keyword < 2; ++keyword) {
      const JsonValue* branches = source_.get(schema, kBranches[static_cast<size_t>(keyword)], Kind::array);
      if (branches != nullptr) return branch(done, open, item, *branches, keyword, out);
    }
  }
  if (out.size() >= kMaxVariants) {
    fail(ErrorKind::unsupported, "grammar", "{}: wanted at most {} alternatives, found more",
         source_.where(done.empty() ? source_.root() : *done.front()), kMaxVariants);
  }
  out.push_back(std::move(done));
}

void SchemaCompiler::branch(const Schemas& done, const std::vector<Item>& open, const Item& from, const JsonValue& branches,
                            int keyword, std::vector<Schemas>& out) {
  if (keyword == 1) check_exclusive(*from.schema, branches);
  for (const JsonValue& part : branches.items) {
    std::vector<Item> next = open;
    next.push_back({from.schema, from.chain, keyword + 1});
    next.push_back({&part, from.chain, 0});
    expand(done, std::move(next), out);
  }
}

// oneOf is read as anyOf, which is the same where no value fulfils two branches.
void SchemaCompiler::check_exclusive(const JsonValue& schema, const JsonValue& branches) {
  std::vector<std::vector<Schemas>> parts;
  for (const JsonValue& part : branches.items) {
    parts.push_back(variants({&part}));
    for (Schemas& one : parts.back()) one.push_back(&schema);
  }
  for (size_t j = 0; j < parts.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      for (const Schemas& a : parts[i]) {
        for (const Schemas& b : parts[j]) {
          if (exclude(a, b, 0)) continue;
          source_.refuse(ErrorKind::unsupported, schema, "oneOf",
                         "wanted branches that exclude each other by type, constant or required member, found {} and {}", i, j);
        }
      }
    }
  }
}

bool SchemaCompiler::exclude(const Schemas& a, const Schemas& b, int depth) {
  if (++expansions_ > kMaxExpansions) return false;
  const std::optional<Schemas> first = constants(a);
  const std::optional<Schemas> second = constants(b);
  const auto types = [&](const Schemas& schemas, const std::optional<Schemas>& values) {
    uint32_t found = types_of(schemas);
    if (!values) return found;
    uint32_t bits = 0;
    for (const JsonValue* value : *values) bits |= type_of(*value);
    return found & bits;
  };
  const uint32_t common = types(a, first) & types(b, second);
  if (common == 0) return true;
  if (first && second) {
    return std::ranges::none_of(*first, [&](const JsonValue* x) {
      return std::ranges::any_of(*second, [&](const JsonValue* y) { return equal(*x, *y); });
    });
  }
  if (common != kObjectType || depth >= kMaxExclusionDepth) return false;
  const ObjectShape left = shape(a);
  const ObjectShape right = shape(b);
  return std::ranges::any_of(left.properties, [&](const Property& mine) {
    const auto other = std::ranges::find(right.properties, mine.name, &Property::name);
    if (other == right.properties.end() || !mine.required || !other->required) return false;
    const std::vector<Schemas> mine_variants = variants(mine.schemas);
    const std::vector<Schemas> other_variants = variants(other->schemas);
    return std::ranges::all_of(mine_variants, [&](const Schemas& x) {
      return std::ranges::all_of(other_variants, [&](const Schemas& y) { return exclude(x, y, depth + 1); });
    });
  });
}

// ---- values
// ---------------------------------------------------------------------------------------------------------------------

Term SchemaCompiler::value(Schemas schemas) {
  std::ranges::sort(schemas);
  schemas.erase(std::ranges::unique(schemas).begin(), schemas.end());
  if (schemas.empty()) return text_.any_value();
  const auto [found, fresh] = rules_.emplace(schemas, kNothing);
  if (!fresh) return found->second;
  if (rules_.size() > kMaxRules) {
    fail(ErrorKind::unsupported, "grammar", "{}: wanted at most {} different parts, found more", source_.where(source_.root()),
         kMaxRules);
  }
  found->second = terms_.rule();
  named_.emplace_back(found->second, schemas);
  return found->second;
}

Term SchemaCompiler::choices(const Schemas& schemas, uint32_t types, Spelling strings) {
  std::vector<Term> found;
  for (const Schemas& one : variants(schemas)) found.push_back(variant(one, types, strings));
  return terms_.either(found);
}

// Every value of the types. Strings end with <|close|> when they are raw.
Term SchemaCompiler::variant(const Schemas& schemas, uint32_t types, Spelling strings) {
  types &= types_of(schemas);
  std::vector<Term> found;
  if (const std::optional<Schemas> values = constants(schemas)) {
    for (const JsonValue* value : *values) {
      if ((type_of(*value) & types) != 0) found.push_back(constant(*value, schemas, strings));
    }
    return terms_.either(found);
  }
  const bool restricted = std::ranges::any_of(schemas, [](const JsonValue* schema) {
    return std::ranges::any_of(kRestrictions, [&](const auto& entry) { return schema->find(entry.first) != nullptr; });
  });
  if (types == kAllTypes && !restricted && strings == Spelling::json) return text_.any_value();
  if ((types & kNullType) != 0) found.push_back(terms_.literal("null"));
  if ((types & kBooleanType) != 0) {
    found.push_back(terms_.literal("true"));
    found.push_back(terms_.literal("false"));
  }
  if ((types & kNumberTypes) != 0) found.push_back(number(schemas, (types & kFractionType) == 0));
  if ((types & kStringType) != 0) found.push_back(string(schemas, strings));
  if ((types & kArrayType) != 0) found.push_back(array(schemas));
  if ((types & kObjectType) != 0) found.push_back(object(schemas));
  return terms_.either(found);
}

uint32_t SchemaCompiler::types_of(const Schemas& schemas) const {
  uint32_t types = kAllTypes;
  for (const JsonValue* schema : schemas) types &= source_.types(*schema);
  return types;
}

std::optional<SchemaCompiler::Schemas> SchemaCompiler::constants(const Schemas& schemas) const {
  std::optional<Schemas> left;
  const auto keep = [&](const Schemas& values) {
    if (!left) {
      left = values;
      return;
    }
    std::erase_if(*left, [&](const JsonValue* x) {
      return std::ranges::none_of(values, [&](const JsonValue* y) { return equal(*x, *y); });
    });
  };
  for (const JsonValue* schema : schemas) {
    if (const JsonValue* value = schema->find("const")) keep({value});
    const JsonValue* list = source_.get(*schema, "enum", Kind::array);
    if (list == nullptr) continue;
    Schemas values;
    for (const JsonValue& value : list->items) values.push_back(&value);
    keep(values);
  }
  return left;
}

Term SchemaCompiler::constant(const JsonValue& value, const Schemas& schemas, Spelling strings) const {
  for (const JsonValue* schema : schemas) {
    for (const auto& [keyword, types] : kRestrictions) {
      if ((types & type_of(value)) == 0 || schema->find(keyword) == nullptr) continue;
      source_.refuse(ErrorKind::unsupported, *schema, keyword, "beside enum or const this keyword is not supported");
    }
  }
  if (!value.is(Kind::string) || strings == Spelling::json) return terms_.literal(write_json(value));
  return terms_.sequence(terms_.literal(value.text), terms_.marker(Marker::close));
}

}  // namespace weft::grammar
