// Text in, ids out, and back: what the program and the server need of a Kimi checkpoint's text files.
//
//     const ChatFormat format = ChatFormat::load("models/k3-mini");
//     const ChatPrompt prompt = format.render(R"({"messages": [{"role": "user", "content": "Hi"}]})");
//     OutputParser parser = format.parser(prompt);
//     parser.feed_token(id) ...
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_request.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"
#include "text/xtml_renderer.h"

namespace weft {

struct ChatPrompt {
  std::vector<Segment> segments;
  std::vector<TokenId> ids;
  ParserStart start = ParserStart::start;
  bool thinking = true;
  bool discard_calls = false;
  std::vector<std::string> notes;  // ChatRequest::notes
};

class ChatFormat {
 public:
  // Errors: KimiTokenizer::load.
  static ChatFormat load(const std::filesystem::path& folder);
  explicit ChatFormat(KimiTokenizer tokenizer);

  [[nodiscard]] const KimiTokenizer& tokenizer() const { return *tokenizer_; }
  // Errors: parse_chat_request and render_xtml.
  [[nodiscard]] ChatPrompt render(std::string_view request_json) const;
  [[nodiscard]] ChatPrompt render(const ChatRequest& request) const;
  // A parser of what the model writes after `prompt`. It refers to this object's tokenizer, which stays in place when the
  // ChatFormat is moved.
  [[nodiscard]] OutputParser parser(const ChatPrompt& prompt, std::function<std::string()> make_call_id = random_call_id) const;

 private:
  std::unique_ptr<const KimiTokenizer> tokenizer_;
};

}  // namespace weft
