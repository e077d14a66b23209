// The prompt of Qwen (ChatML, prompt_and_api.md 4.1 and 4.2).
#pragma once

#include "text/chatml_template.h"
#include "text/dialect.h"

namespace weft {

// Neighbouring text is one segment, as it is one run for the tokenizer. Throws Error(unsupported), naming the message, for
// tools that a later message declares.
[[nodiscard]] RenderedPrompt render_chatml(const ChatRequest& request, const ChatTemplate& chat_template);

}  // namespace weft
