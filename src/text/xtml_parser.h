// What a Kimi K3 model wrote (XTML, prompt_and_api.md 3).
#pragma once

#include "text/output_parser.h"

namespace weft {

// Keeps a reference to the tokenizer.
[[nodiscard]] OutputParser xtml_parser(const Tokenizer& tokenizer, ParserOptions options);

}  // namespace weft
