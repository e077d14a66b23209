// Text in, ids out, and back: what the program and the server need of a checkpoint's text files.
//
//     const ChatFormat format = ChatFormat::load("models/k3-mini");
//     const ChatPrompt prompt = format.render(R"({"messages": [{"role": "user", "content": "Hi"}]})");
//     OutputParser parser = format.parser(prompt);
//     parser.feed_token(id) ...
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_request.h"
#include "text/chatml_template.h"
#include "text/dialect.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace weft {

struct ChatPrompt {
  std::vector<Segment> segments;
  std::vector<TokenId> ids;
  ParserStart start = ParserStart::start;
  bool thinking = true;
  bool discard_calls = false;
  std::vector<std::string> notes;  // of the request and of its rendering
};

class ChatFormat {
 public:
  // By the files of the folder: tiktoken.model is Kimi's tokenizer and XTML; tokenizer.json is Qwen's and ChatML. Throws
  // bad_checkpoint when there is neither, and errors of the loaders; an unsupported chat template is thrown by render() alone,
  // and is in notes().
  static ChatFormat load(const std::filesystem::path& folder);
  static ChatFormat kimi(Tokenizer tokenizer);
  // Without a template, render() throws bad_checkpoint.
  static ChatFormat qwen(Tokenizer tokenizer, std::optional<ChatTemplate> chat_template);

  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] ChatStyle style() const { return dialect_->style(); }
  [[nodiscard]] std::vector<std::string> notes() const { return dialect_->notes(); }
  // Errors: parse_chat_request and Dialect::render.
  [[nodiscard]] ChatPrompt render(std::string_view request_json) const;
  [[nodiscard]] ChatPrompt render(const ChatRequest& request) const;
  // The same from its parts: render_segments(request), and their ids.
  [[nodiscard]] static ChatPrompt prompt(const ChatRequest& request, RenderedPrompt rendered, std::vector<TokenId> ids);
  // The segments alone.
  [[nodiscard]] RenderedPrompt render_segments(const ChatRequest& request) const;
  // A parser of what the model writes after `prompt`. It refers to this object's tokenizer, which stays in place when the
  // ChatFormat is moved.
  [[nodiscard]] OutputParser parser(const ChatPrompt& prompt, std::function<std::string()> make_call_id = random_call_id) const;
  [[nodiscard]] OutputParser parser(ParserOptions options) const { return dialect_->parser(*tokenizer_, std::move(options)); }

 private:
  ChatFormat(Tokenizer tokenizer, std::unique_ptr<const Dialect> dialect);

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const Dialect> dialect_;
};

}  // namespace weft
