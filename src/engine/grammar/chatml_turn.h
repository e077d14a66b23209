// The layout of a turn of Qwen (prompt_and_api.md 4.5, 8.4): reasoning, answer and calls around the values that a request asks
// for.
#pragma once

#include "engine/grammar/text_terms.h"
#include "engine/grammar/turn_rules.h"

namespace weft::grammar {

// What the model may write from `start` to the end of its turn. Reasoning and free text are any bytes; control tokens stand
// only where the layout has them. A call that is required stands at once behind the reasoning.
[[nodiscard]] Term chatml_turn(const TextTerms& text, const TurnRules& rules);

}  // namespace weft::grammar
