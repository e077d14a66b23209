// What a Qwen checkpoint's chat template says about reasoning (prompt_and_api.md 4.2). The template is not run: its text says
// which of the known forms it is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

struct ChatTemplate {
  bool opens_think = false;      // the generation prompt ends in <think>\n: every answer begins with reasoning
  bool can_turn_off = false;     // enable_thinking false puts an empty think block into the prompt
  bool keeps_reasoning = false;  // reasoning of messages is rendered, or dropped where it is old

  // "Thinking (...)" or "Instruct (...)" or what else it is.
  [[nodiscard]] std::string_view description() const;
  friend bool operator==(const ChatTemplate&, const ChatTemplate&) = default;
};

// Throws Error(unsupported) naming `place` for a template that is not ChatML, has tool calls in other forms than JSON, or has a
// generation prompt of another form.
[[nodiscard]] ChatTemplate read_chat_template(std::string_view text, std::string_view place);
// Of chat_template.jinja, else of `chat_template` in tokenizer_config.json (a text, or a list of which 'default' counts);
// nothing when a folder has neither. Throws bad_checkpoint for files that cannot be read.
[[nodiscard]] std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& folder);

}  // namespace weft
