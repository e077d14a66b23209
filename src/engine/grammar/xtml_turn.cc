#include "engine/grammar/xtml_turn.h"

#include <algorithm>
#include <utility>

#include "text/tag.h"

namespace weft::grammar {
namespace {

constexpr int32_t kMaxLead = 256;       // bytes of the response before a call that is required (8.3)
constexpr int32_t kMaxIndexDigits = 3;  // of a call; readers ignore it (3.7)

class Layout {
 public:
  Layout(const TextTerms& text, const TurnRules& rules) : text_(text), terms_(text.terms()), rules_(rules) {
    any_text_ = terms_.repeat(terms_.bytes(byte_range(0, 255)), 0, kUnbounded);
    end_ = closer(terms_.either({close("message"), terms_.marker(Marker::end)}));
    tools_ = rules_.calls == Calls::none ? kNothing : tools_section();
    response_ = response();
  }

  Term turn() {
    const Term think = reasoning();
    switch (rules_.start) {
      // The prompt opened the channel; the model may open it once more.
      case ParserStart::think: return terms_.either({think, terms_.sequence(open("think"), think)});
      case ParserStart::response: return terms_.either({response_, terms_.sequence(open("response"), response_)});
      case ParserStart::start: return terms_.either({terms_.sequence(open("think"), think), behind_reasoning()});
    }
    return kNothing;
  }

 private:
  Term open(std::string_view tag) {
    return terms_.sequence({terms_.marker(Marker::open), terms_.literal(tag), terms_.marker(Marker::sep)});
  }
  Term close(std::string_view tag) {
    return terms_.sequence({terms_.marker(Marker::close), terms_.literal(tag), terms_.marker(Marker::sep)});
  }
  Term closer(Term inner) { return rules_.cut_closers ? terms_.soft(inner) : inner; }
  // Any text up to the marker that `then` begins with.
  Term text_until(Term then) { return terms_.unit(terms_.sequence(any_text_, then)); }
  // Where nothing is pending, a cut loses nothing.
  Term free(Term inner) { return rules_.pending() ? inner : terms_.soft(inner); }

  // Behind free text: what ends the channel, the message or the turn, and calls.
  Term free_tail() {
    return terms_.either({terms_.sequence(close("response"), terms_.either({tools_, end_})), close("message"),
                          terms_.marker(Marker::end), tools_});
  }

  Term response() {
    if (rules_.calls == Calls::required || rules_.calls == Calls::one) {
      const Term lead = rules_.response ? kEnd : terms_.repeat(terms_.bytes(byte_range(0, 255)), 0, kMaxLead);
      return terms_.unit(terms_.sequence({lead, close("response"), tools_}));
    }
    if (!rules_.response) return free(text_until(free_tail()));
    return terms_.either({terms_.sequence(*rules_.response, closer(terms_.sequence(close("response"), end_))),
                          terms_.sequence(close("response"), tools_)});
  }

  // Models leave out the close of the reasoning, or the opener of the response.
  Term behind_reasoning() {
    return terms_.either({terms_.sequence(open("response"), response_), tools_, rules_.pending() ? kNothing : response_});
  }

  Term reasoning() {
    const Term direct = terms_.either({terms_.sequence(open("response"), response_), tools_});
    const Term recovery = rules_.pending() ? kNothing : free_tail();
    return free(text_until(terms_.either({terms_.sequence(close("think"), behind_reasoning()), direct, recovery})));
  }

  Term tools_section() {
    std::vector<Term> calls;
    for (const CallableTool& tool : rules_.tools) calls.push_back(call(tool));
    const Term one = terms_.either(calls);
    const Term more = rules_.calls == Calls::one ? kEnd : terms_.repeat(one, 0, kUnbounded);
    return terms_.sequence({open("tools"), one, more, closer(terms_.sequence(close("tools"), end_))});
  }

  Term call(const CallableTool& tool) {
    const Term digit = terms_.bytes(byte_range('0', '9'));
    const Term index = terms_.sequence(terms_.bytes(byte_range('1', '9')), terms_.repeat(digit, 0, kMaxIndexDigits - 1));
    std::vector<Term> lists;
    for (const ArgumentList& list : tool.arguments) lists.push_back(arguments(list));
    return terms_.sequence({terms_.marker(Marker::open),
                            terms_.literal("call tool=\"" + escape_attribute(tool.name) + "\" index=\""), index,
                            terms_.literal("\""), terms_.marker(Marker::sep), terms_.either(lists)});
  }

  // Up to the end of the call.
  Term arguments(const ArgumentList& list) {
    Members members;
    std::vector<std::string> taken{""};
    for (const Argument& argument : list.arguments) {
      const std::string key = escape_attribute(argument.key);
      taken.push_back(key);
      members.members.push_back({this->argument(terms_.literal(key + "\""), argument.values), argument.required});
    }
    if (!list.extra.empty()) {
      std::ranges::sort(taken);
      members.extra = argument(other_key(taken), list.extra);
    }
    members.end = close("call");
    return terms_.members(std::move(members));
  }

  // Any name but those, with the quote behind it. Names with characters that attributes escape are left out.
  Term other_key(const std::vector<std::string>& taken) {
    const Term character = text_.characters({{0x20, 0x21}, {0x23, 0x25}, {0x27, 0x10FFFF}}, Spelling::raw);
    return text_.ended_name(terms_.automaton(strings_except(terms_, character, taken, "additionalProperties")));
  }

  Term argument(Term quoted_key, const std::vector<TypedValue>& values) {
    std::vector<Term> typed;
    for (const TypedValue& value : values) {
      typed.push_back(terms_.sequence({terms_.literal(fmt::format(" type=\"{}\"", value.type)), terms_.marker(Marker::sep),
                                       value.value, terms_.literal("argument"), terms_.marker(Marker::sep)}));
    }
    return terms_.sequence({terms_.marker(Marker::open), terms_.literal("argument key=\""), quoted_key, terms_.either(typed)});
  }

  const TextTerms& text_;
  Terms& terms_;
  const TurnRules& rules_;
  Term any_text_ = kNothing;
  Term end_ = kNothing;
  Term tools_ = kNothing;
  Term response_ = kNothing;
};

}  // namespace

Term xtml_turn(const TextTerms& text, const TurnRules& rules) { return Layout(text, rules).turn(); }

}  // namespace weft::grammar
