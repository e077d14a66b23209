// What a request asks of a turn, as terms. The layouts (xtml_turn.h, chatml_turn.h) put what a format has around these values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/schema.h"
#include "text/output_parser.h"

namespace weft::grammar {

struct CallableTool {
  std::string name;
  std::vector<ArgumentList> arguments;  // alternatives, where arguments are written one by one (XTML)
  Term object = kNothing;               // where they are one object of JSON (ChatML)
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

}  // namespace weft::grammar
