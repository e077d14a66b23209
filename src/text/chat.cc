#include "text/chat.h"

#include <utility>

#include "base/error.h"
#include "base/guard.h"
#include "text/chatml_parser.h"
#include "text/chatml_renderer.h"
#include "text/kimi_tokenizer.h"
#include "text/qwen_tokenizer.h"
#include "text/xtml_parser.h"
#include "text/xtml_renderer.h"

namespace weft {
namespace {

class Xtml final : public Dialect {
 public:
  [[nodiscard]] ChatStyle style() const override { return ChatStyle::xtml; }
  [[nodiscard]] std::vector<std::string> notes() const override { return {}; }
  [[nodiscard]] RenderedPrompt render(const ChatRequest& request) const override { return render_xtml(request); }
  [[nodiscard]] OutputParser parser(const Tokenizer& tokenizer, ParserOptions options) const override {
    return xtml_parser(tokenizer, std::move(options));
  }
};

class Chatml final : public Dialect {
 public:
  // `refused`: why there is no template, where the checkpoint has one.
  explicit Chatml(std::optional<ChatTemplate> chat_template, std::optional<Failure> refused = std::nullopt)
      : template_(chat_template), refused_(std::move(refused)) {}

  [[nodiscard]] ChatStyle style() const override { return ChatStyle::chatml; }
  [[nodiscard]] std::vector<std::string> notes() const override {
    if (refused_) return {fmt::format("conversations cannot be rendered: {}", refused_->message)};
    return {fmt::format("chat template: {}", template_ ? template_->description() : "none; conversations cannot be rendered")};
  }
  [[nodiscard]] RenderedPrompt render(const ChatRequest& request) const override {
    if (refused_) refused_->raise();
    if (!template_)
      fail(ErrorKind::bad_checkpoint, "chat template",
           "wanted chat_template.jinja, or 'chat_template' in tokenizer_config.json, beside tokenizer.json, found neither");
    return render_chatml(request, *template_);
  }
  [[nodiscard]] OutputParser parser(const Tokenizer& tokenizer, ParserOptions options) const override {
    return chatml_parser(tokenizer, std::move(options));
  }

 private:
  std::optional<ChatTemplate> template_;
  std::optional<Failure> refused_;
};

}  // namespace

std::string RenderedPrompt::text() const {
  std::string joined;
  for (const Segment& segment : segments) joined += segment.bytes;
  return joined;
}

ChatFormat ChatFormat::load(const std::filesystem::path& folder) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored);
  };
  if (has("tiktoken.model")) return kimi(load_kimi_tokenizer(folder));
  if (has("tokenizer.json")) {
    // Text can be encoded whatever form a conversation has.
    std::optional<ChatTemplate> chat_template;
    std::optional<Failure> refused = guard([&] { chat_template = load_chat_template(folder); });
    if (refused && refused->kind != ErrorKind::unsupported) refused->raise();
    return {load_qwen_tokenizer(folder), std::make_unique<const Chatml>(chat_template, std::move(refused))};
  }
  fail(ErrorKind::bad_checkpoint, folder.string(), "wanted tiktoken.model (Kimi) or tokenizer.json (Qwen), found neither");
}

ChatFormat ChatFormat::kimi(Tokenizer tokenizer) { return {std::move(tokenizer), std::make_unique<const Xtml>()}; }

ChatFormat ChatFormat::qwen(Tokenizer tokenizer, std::optional<ChatTemplate> chat_template) {
  return {std::move(tokenizer), std::make_unique<const Chatml>(chat_template)};
}

ChatFormat::ChatFormat(Tokenizer tokenizer, std::unique_ptr<const Dialect> dialect)
    : tokenizer_(std::make_unique<const Tokenizer>(std::move(tokenizer))), dialect_(std::move(dialect)) {}

ChatPrompt ChatFormat::render(std::string_view request_json) const { return render(parse_chat_request(request_json)); }

RenderedPrompt ChatFormat::render_segments(const ChatRequest& request) const {
  if (request.messages.empty()) fail(ErrorKind::bad_input, "chat request", "messages: wanted at least one, found none");
  return dialect_->render(request);
}

ChatPrompt ChatFormat::render(const ChatRequest& request) const {
  RenderedPrompt rendered = render_segments(request);
  std::vector<TokenId> ids = tokenizer_->encode(rendered.segments);
  return prompt(request, std::move(rendered), std::move(ids));
}

ChatPrompt ChatFormat::prompt(const ChatRequest& request, RenderedPrompt rendered, std::vector<TokenId> ids) {
  ChatPrompt prompt;
  prompt.ids = std::move(ids);
  prompt.segments = std::move(rendered.segments);
  prompt.start = rendered.start;
  prompt.thinking = rendered.thinking;
  prompt.discard_calls = request.calls_discarded();
  prompt.notes = request.notes;
  prompt.notes.insert(prompt.notes.end(), rendered.notes.begin(), rendered.notes.end());
  return prompt;
}

OutputParser ChatFormat::parser(const ChatPrompt& prompt, std::function<std::string()> make_call_id) const {
  return parser({.start = prompt.start, .discard_calls = prompt.discard_calls, .make_call_id = std::move(make_call_id)});
}

}  // namespace weft
