// What a Qwen model wrote (ChatML with think blocks and hermes tool calls, prompt_and_api.md 4.5).
#pragma once

#include "text/output_parser.h"

namespace weft {

// Keeps a reference to the tokenizer.
[[nodiscard]] OutputParser chatml_parser(const Tokenizer& tokenizer, ParserOptions options);

}  // namespace weft
