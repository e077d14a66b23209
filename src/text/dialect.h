// How a family of models writes a conversation: the prompt of a request, and the reader of what the model writes after it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_request.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace weft {

enum class ChatStyle : uint8_t {
  xtml,    // Kimi K3 (prompt_and_api.md 2, 3)
  chatml,  // Qwen (4)
};

struct RenderedPrompt {
  std::vector<Segment> segments;           // encode them with Tokenizer::encode(segments)
  ParserStart start = ParserStart::start;  // where the prompt leaves the model
  bool thinking = true;                    // the model may reason before it answers
  std::vector<std::string> notes;          // what the request asks for and this format has no form for

  // The joined text, for logs and for showing only: encoding it again would make markers of what users wrote.
  [[nodiscard]] std::string text() const;
};

class Dialect {
 public:
  Dialect() = default;
  virtual ~Dialect() = default;
  Dialect(const Dialect&) = delete;
  Dialect& operator=(const Dialect&) = delete;

  [[nodiscard]] virtual ChatStyle style() const = 0;
  // What was decided when the checkpoint's files were read.
  [[nodiscard]] virtual std::vector<std::string> notes() const = 0;
  // Throws bad_input or unsupported naming the field of the request.
  [[nodiscard]] virtual RenderedPrompt render(const ChatRequest& request) const = 0;
  // Keeps a reference to the tokenizer.
  [[nodiscard]] virtual OutputParser parser(const Tokenizer& tokenizer, ParserOptions options) const = 0;
};

}  // namespace weft
