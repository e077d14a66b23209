#include "engine/grammar/pattern.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace weft::grammar {
namespace {

constexpr uint32_t kLastCode = 0x10FFFF;
constexpr int kMaxGroups = 64;  // one in another

using Ranges = std::vector<CodeRange>;

// Ascending and apart.
Ranges tidy(Ranges ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  Ranges merged;
  for (const CodeRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

Ranges opposite(Ranges ranges) {
  Ranges others;
  uint32_t next = 0;
  for (const CodeRange& range : tidy(std::move(ranges))) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) others.push_back({next, kLastCode});
  return others;
}

std::optional<Ranges> named_class(char name) {
  const Ranges digit{{'0', '9'}};
  const Ranges word{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  const Ranges space{{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                     {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  switch (name) {
    case 'd': return digit;
    case 'D': return opposite(digit);
    case 'w': return word;
    case 'W': return opposite(word);
    case 's': return space;
    case 'S': return opposite(space);
    default: return std::nullopt;
  }
}

class Reader {
 public:
  Reader(const TextTerms& text, std::string_view expression, Spelling spelling, std::string_view where)
      : text_(text), terms_(text.terms()), expression_(expression), spelling_(spelling), where_(where) {}

  Term read() {
    const Term whole = alternatives(0);
    if (more()) wrong("wanted the end, found ')'");
    return whole;
  }

 private:
  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::bad_input, "grammar", "{}: offset {}: {}", where_, at_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void not_done(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::unsupported, "grammar", "{}: offset {}: {} is not supported", where_, at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] bool more() const { return at_ < expression_.size(); }
  [[nodiscard]] char peek() const { return more() ? expression_[at_] : '\0'; }
  [[nodiscard]] bool take(char wanted) {
    if (peek() != wanted || !more()) return false;
    ++at_;
    return true;
  }
  uint32_t code() {
    const Utf8Step step = utf8_step(expression_.substr(at_));
    at_ += std::max<size_t>(step.length, 1);
    return step.code;
  }

  Term alternatives(int depth) {
    if (depth > kMaxGroups) not_done("more than {} groups in one another", kMaxGroups);
    std::vector<Term> choices;
    do {
      choices.push_back(branch(depth));
    } while (take('|'));
    return terms_.either(choices);
  }

  Term anything() { return terms_.repeat(text_.any_character(spelling_), 0, kUnbounded); }

  Term branch(int depth) {
    std::vector<Term> parts;
    const bool begins = depth == 0 && take('^');
    bool ends = false;
    while (more() && peek() != '|' && peek() != ')') {
      if (depth == 0 && peek() == '$' && (at_ + 1 == expression_.size() || expression_[at_ + 1] == '|')) {
        ++at_;
        ends = true;
        break;
      }
      const Term item = atom(depth);
      parts.push_back(quantified(item));
    }
    Term whole = depth == 0 && !ends ? anything() : kEnd;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) whole = terms_.sequence(*part, whole);
    return depth == 0 && !begins ? terms_.sequence(anything(), whole) : whole;
  }

  Term atom(int depth) {
    switch (peek()) {
      case '(': return group(depth);
      case '[': return one_of(char_class());
      case '.': ++at_; return one_of(opposite({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\': ++at_; return one_of(escape());
      case '^':
      case '$': not_done("'{}' elsewhere than at the ends of a top-level alternative", peek());
      case '*':
      case '+':
      case '?':
      case '{':
      case '}': wrong("wanted something to repeat, found '{}'", peek());
      default: break;
    }
    const uint32_t found = code();
    return one_of({{found, found}});
  }

  // Raw text cannot hold some control characters; a class of only those has no character.
  Term one_of(const Ranges& ranges) { return text_.characters(tidy(ranges), spelling_); }

  Term group(int depth) {
    ++at_;
    if (take('?')) {
      if (peek() == '<' && at_ + 1 < expression_.size() && expression_[at_ + 1] != '=' && expression_[at_ + 1] != '!') {
        while (more() && peek() != '>') ++at_;
        ++at_;
      } else if (!take(':')) {
        not_done("'(?{}'", printable(std::string_view(&expression_[at_], more() ? 1 : 0)));
      }
    }
    const Term inner = alternatives(depth + 1);
    if (!take(')')) wrong("wanted ')', found the end");
    return inner;
  }

  Term quantified(Term item) {
    std::pair<int32_t, int32_t> counts{1, 1};
    if (take('*')) {
      counts = {0, kUnbounded};
    } else if (take('+')) {
      counts = {1, kUnbounded};
    } else if (take('?')) {
      counts = {0, 1};
    } else if (take('{')) {
      counts.first = number();
      counts.second = counts.first;
      if (take(',')) counts.second = peek() == '}' ? kUnbounded : number();
      if (!take('}')) wrong("wanted '}}' behind the count");
      if (counts.second != kUnbounded && counts.second < counts.first) wrong("wanted ascending counts");
    } else {
      return item;
    }
    if (!take('?') && peek() == '+') wrong("wanted something to repeat, found '+'");
    return terms_.repeat(item, counts.first, counts.second);
  }

  int32_t number() {
    const size_t begin = at_;
    int32_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMaxPatternCount) not_done("a count above {}", kMaxPatternCount);
    }
    if (at_ == begin) wrong("wanted a count");
    return value;
  }

  Ranges char_class() {
    ++at_;
    const bool negated = take('^');
    Ranges ranges;
    while (!take(']')) {
      if (!more()) wrong("wanted ']', found the end");
      const Ranges first = class_atom();
      const bool range = peek() == '-' && at_ + 1 < expression_.size() && expression_[at_ + 1] != ']';
      if (!range) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const Ranges last = class_atom();
      const auto single = [](const Ranges& r) { return r.size() == 1 && r[0].first == r[0].last; };
      if (!single(first) || !single(last) || last[0].last < first[0].first) wrong("wanted an ascending range of characters");
      ranges.push_back({first[0].first, last[0].last});
    }
    return negated ? opposite(std::move(ranges)) : ranges;
  }

  Ranges class_atom() {
    if (take('\\')) {
      if (take('b')) return {{8, 8}};
      return escape();
    }
    const uint32_t found = code();
    return {{found, found}};
  }

  // Behind the backslash.
  Ranges escape() {
    if (!more()) wrong("wanted a character behind the backslash, found the end");
    const char name = peek();
    if (const std::optional<Ranges> found = named_class(name)) {
      ++at_;
      return *found;
    }
    constexpr std::string_view kNames = "tnrfv0";
    constexpr std::string_view kCodes("\t\n\r\f\v\0", 6);
    if (const size_t found = kNames.find(name); found != std::string_view::npos) {
      ++at_;
      return single(static_cast<uint8_t>(kCodes[found]));
    }
    if (name == 'x' || name == 'u') {
      ++at_;
      if (name == 'u' && take('{')) {
        const uint32_t found = hex(1, 6);
        if (!take('}')) wrong("wanted '}}'");
        return single(found);
      }
      const int digits = name == 'x' ? 2 : 4;
      return single(hex(digits, digits));
    }
    const bool word = (name >= '0' && name <= '9') || (name >= 'A' && name <= 'Z') || (name >= 'a' && name <= 'z');
    if (word) not_done("'\\{}'", name);
    return single(code());
  }

  [[nodiscard]] Ranges single(uint32_t found) const {
    if (found > kLastCode || (found >= 0xD800 && found <= 0xDFFF)) wrong("wanted a character, found U+{:04X}", found);
    return {{found, found}};
  }

  uint32_t hex(int least, int most) {
    uint32_t value = 0;
    int count = 0;
    for (; count < most; ++count, ++at_) {
      const char c = peek();
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<uint32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        value = value * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        break;
      }
    }
    if (count < least) wrong("wanted {} hexadecimal digits, found {}", least, count);
    return value;
  }

  const TextTerms& text_;
  Terms& terms_;
  std::string_view expression_;
  Spelling spelling_;
  std::string_view where_;
  size_t at_ = 0;
};

}  // namespace

Term pattern_text(const TextTerms& text, std::string_view expression, Spelling spelling, std::string_view where) {
  if (expression.size() > kMaxPatternBytes) {
    fail(ErrorKind::unsupported, "grammar", "{}: wanted at most {} bytes, found {}", where, kMaxPatternBytes,
         expression.size());
  }
  return Reader(text, expression, spelling, where).read();
}

}  // namespace weft::grammar
