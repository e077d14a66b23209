#include "engine/grammar/chatml_turn.h"

namespace weft::grammar {
namespace {

constexpr int32_t kMaxBreaks = 2;  // behind the reasoning

class Layout {
 public:
  Layout(const TextTerms& text, const TurnRules& rules) : text_(text), terms_(text.terms()), rules_(rules) {
    end_ = terms_.marker(Marker::end);
    calls_ = rules_.calls == Calls::none ? kNothing : calls();
    content_ = content();
  }

  Term turn() {
    const Term opener = terms_.marker(Marker::open_think);
    switch (rules_.start) {
      // The prompt opened the think block; the model may open it once more.
      case ParserStart::think: {
        const Term think = reasoning();
        return terms_.either({think, terms_.sequence(opener, think)});
      }
      case ParserStart::start:
        return terms_.either({content_, rules_.pending() ? kNothing : terms_.sequence(opener, reasoning())});
      case ParserStart::response: return content_;
    }
    return kNothing;
  }

 private:
  Term closer(Term inner) { return rules_.cut_closers ? terms_.soft(inner) : inner; }
  // Any text up to the marker that `then` begins with.
  Term text_until(Term then) {
    return terms_.unit(terms_.sequence(terms_.repeat(terms_.bytes(byte_range(0, 255)), 0, kUnbounded), then));
  }
  // Where nothing is pending, a cut loses nothing.
  Term free(Term inner) { return rules_.pending() ? inner : terms_.soft(inner); }

  Term content() {
    if (rules_.calls == Calls::required || rules_.calls == Calls::one) return calls_;
    if (!rules_.response) return free(text_until(terms_.either({end_, calls_})));
    return terms_.either({terms_.sequence(*rules_.response, closer(end_)), calls_});
  }

  Term reasoning() {
    const Term breaks = rules_.pending() ? terms_.repeat(terms_.literal("\n"), 0, kMaxBreaks) : kEnd;
    return free(text_until(terms_.either(
        {terms_.sequence({terms_.marker(Marker::close_think), breaks, content_}), rules_.pending() ? kNothing : end_})));
  }

  // From the first call to the end of the turn.
  Term calls() {
    std::vector<Term> choices;
    for (const CallableTool& tool : rules_.tools) choices.push_back(call(tool));
    const Term one = terms_.either(choices);
    const Term more =
        rules_.calls == Calls::one ? kEnd : terms_.repeat(terms_.sequence(terms_.literal("\n"), one), 0, kUnbounded);
    return terms_.sequence({one, more, closer(end_)});
  }

  Term call(const CallableTool& tool) {
    return terms_.sequence({terms_.marker(Marker::open_call), terms_.literal("\n{\"name\": "), text_.key(tool.name),
                            terms_.literal(", \"arguments\": "), tool.object, terms_.literal("}\n"),
                            terms_.marker(Marker::close_call)});
  }

  const TextTerms& text_;
  Terms& terms_;
  const TurnRules& rules_;
  Term end_ = kNothing;
  Term calls_ = kNothing;
  Term content_ = kNothing;
};

}  // namespace

Term chatml_turn(const TextTerms& text, const TurnRules& rules) { return Layout(text, rules).turn(); }

}  // namespace weft::grammar
