// The layout of a turn of Kimi K3 (prompt_and_api.md 3.1, 8.3): channels, calls and what closes them, around the values that a
// request asks for. Beside the text of headers in name_guard.h, this is the only place of the grammar that knows XTML.
#pragma once

#include "engine/grammar/text_terms.h"
#include "engine/grammar/turn_rules.h"

namespace weft::grammar {

// What the model may write from `start` to the end of its turn. Reasoning and free text are any bytes; control tokens stand
// only where the layout has them. Before a call that is required, the response has at most 256 bytes.
[[nodiscard]] Term xtml_turn(const TextTerms& text, const TurnRules& rules);

}  // namespace weft::grammar
