// The prompt of Kimi K3 (XTML, prompt_and_api.md 2).
#pragma once

#include "text/dialect.h"

namespace weft {

// Throws Error(bad_input), naming the message index, for a tool result without a name (2.6).
[[nodiscard]] RenderedPrompt render_xtml(const ChatRequest& request);

}  // namespace weft
