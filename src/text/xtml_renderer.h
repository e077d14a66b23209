// The prompt of Kimi K3 (XTML, prompt_and_api.md 2).
#pragma once

#include <string>
#include <vector>

#include "text/chat_request.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace weft {

struct RenderedPrompt {
  std::vector<Segment> segments;           // encode them with KimiTokenizer::encode(segments)
  ParserStart start = ParserStart::start;  // where the prompt leaves the model

  // The joined text, for logs and for showing only: encoding it again would make markers of what users wrote.
  [[nodiscard]] std::string text() const;
};

// Throws Error(bad_input), naming the message index, for a tool result without a name (2.6).
[[nodiscard]] RenderedPrompt render_xtml(const ChatRequest& request);

}  // namespace weft
