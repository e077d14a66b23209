// The layout of a turn of Kimi K3 (prompt_and_api.md 3.1, 8.3): channels, calls and what closes them, around the values that a
// request asks for. This is the only place of the grammar that knows XTML; another family of models has a file like this one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/schema.h"
#include "engine/grammar/text_terms.h"
#include "text/output_parser.h"

namespace weft::grammar {

struct CallableTool {
  std::string name;
  std::vector<ArgumentList> arguments;  // alternatives
};

enum class Calls : uint8_t {
  none,
  allowed,
  required,  // at least one
  one,
};

struct TurnRules {
  std::optional<Term> response;     // the value that the response is; nothing: any text
  std::vector<CallableTool> tools;  // at least one where calls are not `none`
  Calls calls = Calls::none;
  ParserStart start = ParserStart::start;
  bool cut_closers = false;  // the text may be cut behind the response or a call, where only markers would follow

  // The turn may end anywhere without loss.
  [[nodiscard]] bool pending() const { return response || calls == Calls::required || calls == Calls::one; }
};

// What the model may write from `start` to the end of its turn. Reasoning and free text are any bytes; control tokens stand
// only where the layout has them. Before a call that is required, the response has at most 256 bytes.
[[nodiscard]] Term xtml_turn(const TextTerms& text, const TurnRules& rules);

}  // namespace weft::grammar
