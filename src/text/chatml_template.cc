#include "text/chatml_template.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace weft {
namespace {

std::optional<std::string> template_in(const Json& config, std::string_view place) {
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) return std::nullopt;
  const Json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const Json& named : value) {
      if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
          named["template"].is_string())
        return named["template"].get<std::string>();
    }
  }
  fail(ErrorKind::bad_checkpoint, place, "chat_template: wanted a text, or a list with a text named 'default', found {}",
       value.type_name());
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

std::string_view ChatTemplate::description() const {
  if (can_turn_off)
    return opens_think ? "both (answers begin with reasoning unless it is turned off)"
                       : "both (the model decides to reason unless it is turned off)";
  return opens_think ? "Thinking (every answer begins with reasoning)" : "Instruct (answers without reasoning)";
}

ChatTemplate read_chat_template(std::string_view text, std::string_view place) {
  if (!contains(text, "<|im_start|>"))
    fail(ErrorKind::unsupported, place, "wanted a ChatML template, found one without <|im_start|>");
  if (contains(text, "<function="))
    fail(ErrorKind::unsupported, place, "wanted tool calls as JSON, found a template that writes them as <function=NAME>");
  const size_t last = text.rfind("add_generation_prompt");
  if (last == text.npos)
    fail(ErrorKind::unsupported, place, "wanted a template with a generation prompt, found no 'add_generation_prompt'");
  const std::string_view prompt = text.substr(last);
  if (!contains(prompt, "<|im_start|>assistant"))
    fail(ErrorKind::unsupported, place, "wanted a generation prompt with '<|im_start|>assistant', found '{}'",
         printable(prompt.substr(0, 160)));
  ChatTemplate made;
  // The line break is an escape in a string of the template, or itself.
  for (const std::string_view end : {"<think>\\n'", "<think>\\n\"", "<think>\n'", "<think>\n\"", "<think>\n{%", "<think>\n{#"})
    made.opens_think = made.opens_think || contains(prompt, end);
  made.can_turn_off = contains(prompt, "enable_thinking");
  made.keeps_reasoning = contains(text, "reasoning_content");
  if (contains(prompt, "<think>") && !made.opens_think && !made.can_turn_off)
    fail(ErrorKind::unsupported, place, "wanted a generation prompt that ends in '<think>\\n' or has no <think>, found '{}'",
         printable(prompt.substr(0, 160)));
  return made;
}

std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& folder) {
  if (const auto text = read_tokenizer_file_if_there(folder, "chat_template.jinja"))
    return read_chat_template(*text, (folder / "chat_template.jinja").string());
  const auto file = read_tokenizer_file_if_there(folder, "tokenizer_config.json");
  if (!file) return std::nullopt;
  const std::string place = (folder / "tokenizer_config.json").string();
  const std::optional<std::string> text = template_in(parse_json(*file, place, ErrorKind::bad_checkpoint), place);
  return text ? std::optional(read_chat_template(*text, place + ": chat_template")) : std::nullopt;
}

}  // namespace weft
