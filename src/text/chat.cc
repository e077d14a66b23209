#include "text/chat.h"

#include <utility>

namespace weft {

ChatFormat ChatFormat::load(const std::filesystem::path& folder) { return ChatFormat(KimiTokenizer::load(folder)); }

ChatFormat::ChatFormat(KimiTokenizer tokenizer) : tokenizer_(std::make_unique<const KimiTokenizer>(std::move(tokenizer))) {}

ChatPrompt ChatFormat::render(std::string_view request_json) const { return render(parse_chat_request(request_json)); }

ChatPrompt ChatFormat::render(const ChatRequest& request) const {
  RenderedPrompt rendered = render_xtml(request);
  ChatPrompt prompt;
  prompt.ids = tokenizer_->encode(rendered.segments);
  prompt.segments = std::move(rendered.segments);
  prompt.start = rendered.start;
  prompt.thinking = request.thinking;
  prompt.discard_calls = request.calls_discarded();
  prompt.notes = request.notes;
  return prompt;
}

OutputParser ChatFormat::parser(const ChatPrompt& prompt, std::function<std::string()> make_call_id) const {
  return OutputParser(*tokenizer_,
                      {.start = prompt.start, .discard_calls = prompt.discard_calls, .make_call_id = std::move(make_call_id)});
}

}  // namespace weft
