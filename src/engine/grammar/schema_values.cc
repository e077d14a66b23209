// SchemaCompiler: what each type of value allows.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "engine/grammar/formats.h"
#include "engine/grammar/pattern.h"
#include "engine/grammar/schema.h"

namespace weft::grammar {
namespace {

using Kind = JsonValue::Kind;

constexpr int32_t kMaxMultiple = 10'000;

int32_t tighter(int32_t a, std::optional<int32_t> b) {
  if (!b) return a;
  return a == kUnbounded ? *b : std::min(a, *b);
}

// 1 for 0.1, 2 for 0.01, ...; nothing for other numbers.
std::optional<int32_t> decimal_places(const Decimal& number) {
  const size_t last = number.fraction.size();
  if (number.negative || number.whole != "0" || last == 0 || number.fraction.find_first_not_of('0') != last - 1 ||
      number.fraction.back() != '1') {
    return std::nullopt;
  }
  return static_cast<int32_t>(last);
}

// Characters of a string between two counts, under several expressions at once.
Dfa counted(Terms& terms, const std::vector<Term>& expressions, int32_t min, int32_t max, std::string_view what) {
  using State = std::pair<std::vector<Term>, int32_t>;
  const int32_t most = max == kUnbounded ? min : max;
  const auto step = [&](const State& state, uint8_t byte) -> std::optional<State> {
    State next = state;
    for (Term& term : next.first) {
      term = terms.after(term, byte);
      if (term == kNothing) return std::nullopt;
    }
    const bool begins_character = (byte & 0xC0) != 0x80;
    if (begins_character && (max != kUnbounded || next.second < most)) ++next.second;
    return next.second > most ? std::nullopt : std::optional(std::move(next));
  };
  const auto accepts = [&](const State& state) {
    return state.second >= min && std::ranges::all_of(state.first, [&](Term term) { return terms.nullable(term); });
  };
  return explore(State(expressions, 0), what, step, accepts);
}

}  // namespace

Term SchemaCompiler::number(const Schemas& schemas, bool integer) const {
  NumberRange range;
  range.integer = integer;
  std::string where = "number";
  const auto read = [&](const JsonValue& schema, std::string_view keyword) -> std::optional<Decimal> {
    const JsonValue* found = source_.get(schema, keyword, Kind::number);
    if (found == nullptr) return std::nullopt;
    where = source_.where(schema, keyword);
    const std::optional<Decimal> number = Decimal::read(found->text);
    if (!number)
      source_.refuse(ErrorKind::unsupported, schema, keyword, "wanted at most {} digits, found {}", kMaxDigits, found->text);
    return number;
  };
  for (const JsonValue* schema : schemas) {
    for (const auto& [keyword, low, exclusive] :
         {std::tuple("minimum", true, false), std::tuple("exclusiveMinimum", true, true), std::tuple("maximum", false, false),
          std::tuple("exclusiveMaximum", false, true)}) {
      const std::optional<Decimal> value = read(*schema, keyword);
      if (!value) continue;
      if (range.bounds.size() == kMaxBounds) {
        source_.refuse(ErrorKind::unsupported, *schema, keyword, "wanted at most {} bounds of one number, found more",
                       kMaxBounds);
      }
      range.bounds.push_back({.value = *value, .low = low, .exclusive = exclusive});
    }
    const std::optional<Decimal> multiple = read(*schema, "multipleOf");
    if (!multiple) continue;
    if (const std::optional<int32_t> places = decimal_places(*multiple)) {
      range.max_fraction = std::min(range.max_fraction, *places);
      continue;
    }
    int32_t whole = 0;
    const bool fits =
        std::from_chars(multiple->whole.data(), multiple->whole.data() + multiple->whole.size(), whole).ec == std::errc();
    if (!fits || multiple->negative || !multiple->fraction.empty() || whole < 1 || whole > kMaxMultiple ||
        range.multiple_of != 0) {
      source_.refuse(ErrorKind::unsupported, *schema, "multipleOf",
                     "wanted one whole number from 1 to {}, or 0.1, 0.01, ..., found {}", kMaxMultiple,
                     schema->find("multipleOf")->text);
    }
    range.multiple_of = whole;
    range.integer = true;
  }
  return number_in(text_, range, where);
}

Term SchemaCompiler::string(const Schemas& schemas, Spelling spelling) const {
  int32_t min = 0;
  int32_t max = kUnbounded;
  std::vector<std::pair<std::string_view, std::string>> expressions;  // and their places
  for (const JsonValue* schema : schemas) {
    min = std::max(min, source_.count(*schema, "minLength").value_or(0));
    max = tighter(max, source_.count(*schema, "maxLength"));
    if (const JsonValue* pattern = source_.get(*schema, "pattern", Kind::string)) {
      expressions.emplace_back(pattern->text, source_.where(*schema, "pattern"));
    }
    if (const JsonValue* format = source_.get(*schema, "format", Kind::string)) {
      const std::optional<std::string_view> known = format_pattern(format->text);
      if (!known) source_.refuse(ErrorKind::unsupported, *schema, "format", "the format '{}' is not supported", format->text);
      expressions.emplace_back(*known, source_.where(*schema, "format"));
    }
  }
  if (max != kUnbounded && max < min) return kNothing;
  if (expressions.empty()) return text_.quoted(terms_.repeat(text_.any_character(spelling), min, max), spelling);
  const bool bounded = min > 0 || max != kUnbounded;
  if (expressions.size() == 1 && !bounded) {
    return text_.quoted(pattern_text(text_, expressions[0].first, spelling, expressions[0].second), spelling);
  }
  std::vector<Term> raw;
  for (const auto& [expression, where] : expressions) raw.push_back(pattern_text(text_, expression, Spelling::raw, where));
  const std::string_view what = expressions.front().second;
  Dfa dfa = counted(terms_, raw, min, max, what);
  if (dfa.any() && spelling == Spelling::json) dfa = json_spelling(dfa, what);
  return text_.quoted(terms_.automaton(std::move(dfa)), spelling);
}

Term SchemaCompiler::array(const Schemas& schemas) {
  int32_t min = 0;
  int32_t max = kUnbounded;
  size_t fixed = 0;
  for (const JsonValue* schema : schemas) {
    min = std::max(min, source_.count(*schema, "minItems").value_or(0));
    max = tighter(max, source_.count(*schema, "maxItems"));
    if (const JsonValue* prefix = source_.get(*schema, "prefixItems", Kind::array))
      fixed = std::max(fixed, prefix->items.size());
  }
  if (max != kUnbounded && max < min) return kNothing;
  const auto at = [&](size_t index) {
    Schemas found;
    for (const JsonValue* schema : schemas) {
      const JsonValue* prefix = schema->find("prefixItems");
      const JsonValue* rest = schema->find("items");
      if (prefix != nullptr && index < prefix->items.size()) {
        found.push_back(&prefix->items[index]);
      } else if (rest != nullptr) {
        found.push_back(rest);
      }
    }
    return value(found);
  };
  std::vector<Term> prefix;
  for (size_t i = 0; i < fixed; ++i) prefix.push_back(at(i));
  return text_.array(prefix, at(fixed), min, max);
}

SchemaCompiler::ObjectShape SchemaCompiler::shape(const Schemas& schemas) const {
  ObjectShape shape;
  bool declares = false;
  bool closed = false;
  const auto at = [&](const std::string& name) -> Property& {
    const auto found = std::ranges::find(shape.properties, name, &Property::name);
    return found != shape.properties.end() ? *found : shape.properties.emplace_back(Property{name, false, {}});
  };
  for (const JsonValue* schema : schemas) {
    if (const JsonValue* properties = source_.get(*schema, "properties", Kind::object)) {
      declares = true;
      for (const auto& [name, inner] : properties->members) (void)at(name);
    }
    if (const JsonValue* required = source_.get(*schema, "required", Kind::array)) {
      for (const JsonValue& name : required->items) {
        if (!name.is(Kind::string))
          source_.refuse(ErrorKind::bad_input, *schema, "required", "wanted names, found {}", write_json(name));
        at(name.text).required = true;
      }
    }
    if (const JsonValue* extra = schema->find("additionalProperties")) {
      closed = closed || (extra->is(Kind::boolean) && !extra->boolean);
      shape.extra.push_back(extra);
    }
  }
  shape.open = !closed && (!declares || !shape.extra.empty());
  for (Property& property : shape.properties) {
    for (const JsonValue* schema : schemas) {
      const JsonValue* properties = schema->find("properties");
      const JsonValue* own = properties == nullptr ? nullptr : properties->find(property.name);
      if (own == nullptr) own = schema->find("additionalProperties");
      if (own != nullptr) property.schemas.push_back(own);
    }
  }
  return shape;
}

Term SchemaCompiler::object(const Schemas& schemas) {
  const ObjectShape found = shape(schemas);
  std::vector<Members::Member> members;
  std::vector<std::string> taken;
  for (const Property& property : found.properties) {
    members.push_back({text_.member(text_.key(property.name), value(property.schemas)), property.required});
    taken.push_back(property.name);
  }
  std::ranges::sort(taken);
  const Term extra = found.open ? text_.member(text_.other_key(taken), value(found.extra)) : kNothing;
  return text_.object(std::move(members), extra);
}

std::vector<TypedValue> SchemaCompiler::typed_values(const Schemas& schemas) {
  constexpr std::array<std::pair<std::string_view, uint32_t>, 6> kTypes{{{"string", kStringType},
                                                                         {"number", kNumberTypes},
                                                                         {"boolean", kBooleanType},
                                                                         {"null", kNullType},
                                                                         {"object", kObjectType},
                                                                         {"array", kArrayType}}};
  std::vector<TypedValue> found;
  for (const auto& [name, types] : kTypes) {
    const bool raw = types == kStringType;
    const Term value = choices(schemas, types, raw ? Spelling::raw : Spelling::json);
    if (value != kNothing) found.push_back({name, raw ? value : terms_.sequence(value, terms_.marker(Marker::close))});
  }
  return found;
}

std::vector<ArgumentList> SchemaCompiler::arguments() {
  std::vector<ArgumentList> lists;
  for (const Schemas& schemas : variants({&source_.root()})) {
    if ((types_of(schemas) & kObjectType) == 0) continue;
    for (const JsonValue* schema : schemas) {
      for (const std::string_view keyword : {"enum", "const"}) {
        if (schema->find(keyword) == nullptr) continue;
        source_.refuse(ErrorKind::unsupported, *schema, keyword, "around all arguments this keyword is not supported");
      }
    }
    const ObjectShape found = shape(schemas);
    ArgumentList& list = lists.emplace_back();
    for (const Property& property : found.properties) {
      list.arguments.push_back({property.name, property.required, typed_values(property.schemas)});
    }
    if (found.open) list.extra = typed_values(found.extra);
  }
  if (lists.empty()) refuse_no_object();
  return lists;
}

void SchemaCompiler::refuse_no_object() const {
  fail(ErrorKind::bad_input, "grammar", "{}: wanted a schema of objects, found one that allows none",
       source_.where(source_.root()));
}

}  // namespace weft::grammar
