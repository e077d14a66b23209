#include "text/json_value.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace weft {
namespace {

// Why and where reading stopped. A value, because text of a model that is no JSON is an ordinary case.
struct Fault {
  std::string what;
  size_t offset = 0;
  std::string found;  // empty: the text at `offset`
};

class Reader {
 public:
  Reader(std::string_view text, JsonRules rules) : text_(text), rules_(rules) {}

  bool read(JsonValue& value) {
    skip_space();
    if (!read_value(value, 0)) return false;
    skip_space();
    return at_ == text_.size() || stop("the end");
  }

  Fault fault;

 private:
  bool stop(std::string what, std::string found = {}) {
    fault = {std::move(what), at_, std::move(found)};
    return false;
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
  }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  bool read_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return stop("a JSON value");
    at_ += word.size();
    return true;
  }

  bool read_value(JsonValue& value, int depth) {
    value.begin = at_;
    if (!read_by_kind(value, depth)) return false;
    value.end = at_;
    return true;
  }

  bool read_by_kind(JsonValue& value, int depth) {
    using Kind = JsonValue::Kind;
    switch (peek()) {
      case '{': value.kind = Kind::object; return deeper(depth) && read_object(value, depth + 1);
      case '[': value.kind = Kind::array; return deeper(depth) && read_array(value, depth + 1);
      case '"': value.kind = Kind::string; return read_string(value.text);
      case 't':
        value.kind = Kind::boolean;
        value.boolean = true;
        return read_word("true");
      case 'f': value.kind = Kind::boolean; return read_word("false");
      case 'n': return read_word("null");
      default: value.kind = Kind::number; return read_number(value.text);
    }
  }

  bool deeper(int depth) { return depth < rules_.max_depth || stop(fmt::format("nesting of at most {}", rules_.max_depth)); }

  bool read_object(JsonValue& value, int depth) {
    ++at_;
    skip_space();
    if (take('}')) return true;
    while (true) {
      if (peek() != '"') return stop("a key in quotes");
      auto& [key, member] = value.members.emplace_back();
      if (!read_string(key)) return false;
      skip_space();
      if (!take(':')) return stop("':'");
      skip_space();
      if (!read_value(member, depth)) return false;
      skip_space();
      if (take('}')) break;
      if (!take(',')) return stop("',' or '}'");
      skip_space();
    }
    return rules_.duplicate_keys || check_keys(value);
  }

  bool check_keys(const JsonValue& value) {
    std::vector<std::string_view> keys;
    keys.reserve(value.members.size());
    for (const auto& member : value.members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    return twice == keys.end() ||
           stop("each key once", fmt::format("'{}' twice in the object that ends there", twice->substr(0, 100)));
  }

  bool read_array(JsonValue& value, int depth) {
    ++at_;
    skip_space();
    if (take(']')) return true;
    while (true) {
      if (!read_value(value.items.emplace_back(), depth)) return false;
      skip_space();
      if (take(']')) return true;
      if (!take(',')) return stop("',' or ']'");
      skip_space();
    }
  }

  bool read_number(std::string& literal) {
    const size_t begin = at_;
    const auto digits = [&] {
      const size_t from = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      return at_ > from;
    };
    take('-');
    if (!take('0') && !digits()) {
      at_ = begin;
      return stop("a JSON value");
    }
    if (take('.') && !digits()) return stop("a digit after '.'");
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return stop("a digit of the exponent");
    }
    literal = text_.substr(begin, at_ - begin);
    return true;
  }

  bool read_hex(uint32_t& code) {
    code = 0;
    if (text_.size() - at_ < 4) return stop("four hexadecimal digits");
    for (int i = 0; i < 4; ++i) {
      const char c = text_[at_];
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A' + 10);
      } else {
        return stop("four hexadecimal digits");
      }
      code = code << 4 | digit;
      ++at_;
    }
    return true;
  }

  bool read_unicode_escape(std::string& out) {
    uint32_t code = 0;
    if (!read_hex(code)) return false;
    if (code >= 0xD800 && code <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
      const size_t after_high = at_;
      at_ += 2;
      uint32_t low = 0;
      if (!read_hex(low)) return false;
      if (low >= 0xDC00 && low <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = after_high;  // the high surrogate stands alone; what follows is read by itself
      }
    }
    append_utf8(out, code);
    return true;
  }

  bool read_string(std::string& out) {
    ++at_;
    while (true) {
      if (at_ >= text_.size()) return stop("'\"' at the end of a string");
      const auto c = static_cast<uint8_t>(text_[at_]);
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c < 0x20) return stop("control characters escaped");
      if (c >= 0x80) {
        const Utf8Step step = utf8_step(text_.substr(at_));
        if (!step.good) return stop("well-formed UTF-8");
        out += text_.substr(at_, step.length);
        at_ += step.length;
        continue;
      }
      ++at_;
      if (c != '\\') {
        out += static_cast<char>(c);
        continue;
      }
      const char escape = peek();
      ++at_;
      switch (escape) {
        case '"':
        case '\\':
        case '/': out += escape; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'n': out += '\n'; break;
        case 'r': out += '\r'; break;
        case 't': out += '\t'; break;
        case 'u':
          if (!read_unicode_escape(out)) return false;
          break;
        default: --at_; return stop("a known escape after '\\'");
      }
    }
  }

  std::string_view text_;
  JsonRules rules_;
  size_t at_ = 0;
};

void append_json(std::string& out, const JsonValue& value, JsonStyle style) {
  using Kind = JsonValue::Kind;
  const std::string_view comma = style.spaced ? ", " : ",";
  switch (value.kind) {
    case Kind::null: out += "null"; break;
    case Kind::boolean: out += value.boolean ? "true" : "false"; break;
    case Kind::number: out += value.text; break;
    case Kind::string: append_json_string(out, value.text); break;
    case Kind::array:
      out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += comma;
        append_json(out, value.items[i], style);
      }
      out += ']';
      break;
    case Kind::object: {
      std::vector<const JsonMember*> members;
      members.reserve(value.members.size());
      for (const auto& member : value.members) members.push_back(&member);
      // The order of UTF-8 bytes is the order of code points.
      if (style.sort_keys)
        std::stable_sort(members.begin(), members.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
      out += '{';
      for (size_t i = 0; i < members.size(); ++i) {
        if (i > 0) out += comma;
        append_json_string(out, members[i]->first);
        out += style.spaced ? ": " : ":";
        append_json(out, members[i]->second, style);
      }
      out += '}';
      break;
    }
  }
}

// The first characters of `text`, whole ones.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 16;
  size_t length = 0;
  while (length < std::min(text.size(), kMost)) length += utf8_step(text.substr(length)).length;
  return printable(text.substr(0, length));
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (member->first == key) return &member->second;
  }
  return nullptr;
}

std::string_view describe(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::null: return "null";
    case JsonValue::Kind::boolean: return "a boolean";
    case JsonValue::Kind::number: return "a number";
    case JsonValue::Kind::string: return "a string";
    case JsonValue::Kind::array: return "an array";
    case JsonValue::Kind::object: return "an object";
  }
  return "nothing known";
}

JsonValue parse_json_value(std::string_view text, std::string_view place, JsonRules rules) {
  Reader reader(text, rules);
  JsonValue value;
  if (!reader.read(value)) {
    const Fault& fault = reader.fault;
    const std::string found = !fault.found.empty()         ? fault.found
                              : fault.offset < text.size() ? shown(text.substr(fault.offset))
                                                           : std::string("the end of the text");
    fail(ErrorKind::bad_input, place, "JSON at byte {}: wanted {}, found {}", fault.offset, fault.what, found);
  }
  return value;
}

std::optional<JsonValue> try_parse_json_value(std::string_view text, JsonRules rules) {
  Reader reader(text, rules);
  JsonValue value;
  if (!reader.read(value)) return std::nullopt;
  return value;
}

std::string write_json(const JsonValue& value, JsonStyle style) {
  std::string out;
  append_json(out, value, style);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<uint8_t>(c) >> 4];
          out += kHex[static_cast<uint8_t>(c) & 15];
        } else {
          out += c;
        }
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

}  // namespace weft
