#include "engine/prompt_choice.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"

namespace weft {
namespace {

using Kind = JsonValue::Kind;

JsonValue json_string(std::string text) {
  JsonValue value;
  value.kind = Kind::string;
  value.text = std::move(text);
  return value;
}

JsonValue json_bool(bool boolean) {
  JsonValue value;
  value.kind = Kind::boolean;
  value.boolean = boolean;
  return value;
}

JsonValue json_message(std::string_view role, std::string text) {
  JsonValue value;
  value.kind = Kind::object;
  value.members.emplace_back("role", json_string(std::string(role)));
  value.members.emplace_back("content", json_string(std::move(text)));
  return value;
}

bool is_system(const JsonValue& message) {
  const JsonValue* role = message.is(Kind::object) ? message.find("role") : nullptr;
  return role != nullptr && role->is(Kind::string) && (role->text == "system" || role->text == "developer");
}

void erase(JsonValue& object, std::initializer_list<std::string_view> keys) {
  std::erase_if(object.members, [&](const auto& member) { return std::ranges::find(keys, member.first) != keys.end(); });
}

void set(JsonValue& object, std::string_view key, JsonValue value) {
  erase(object, {key});
  object.members.emplace_back(std::string(key), std::move(value));
}

// Removes every spelling of a setting, at the top and in the objects that may hold it.
void drop_setting(JsonValue& root, std::initializer_list<std::string_view> keys) {
  erase(root, keys);
  for (auto& [key, value] : root.members) {
    if (value.is(Kind::object) && (key == "options" || key == "chat_template_kwargs")) drop_setting(value, keys);
  }
}

std::optional<int64_t> read_max_tokens(const JsonValue& root) {
  for (const std::string_view key : {"max_completion_tokens", "max_tokens"}) {
    const JsonValue* value = root.find(key);
    if (value == nullptr || value->is(Kind::null)) continue;
    int64_t number = 0;
    const char* end = value->text.data() + value->text.size();
    const auto [at, error] = std::from_chars(value->text.data(), end, number);
    if (!value->is(Kind::number) || error != std::errc() || at != end || number < 1) {
      fail(ErrorKind::bad_input, "chat request", "{}: wanted an integer of at least 1, found {}", key, write_json(*value));
    }
    return number;
  }
  return std::nullopt;
}

void check_utf8(const std::optional<std::string>& text, std::string_view place) {
  if (!text) return;
  if (const auto offset = find_ill_formed_utf8(*text)) {
    fail(ErrorKind::bad_input, place, "wanted UTF-8, found byte 0x{:02x} at offset {}", static_cast<uint8_t>((*text)[*offset]),
         *offset);
  }
}

}  // namespace

RequestChoice build_request(const PromptChoice& choice, bool may_be_empty) {
  check_utf8(choice.system, "--system");
  check_utf8(choice.prompt, "--prompt");
  JsonValue root;
  root.kind = Kind::object;
  JsonValue messages;
  messages.kind = Kind::array;
  if (choice.messages) {
    JsonValue given = parse_json_value(*choice.messages, choice.messages_place);
    if (given.is(Kind::object)) {
      root = std::move(given);
      const JsonValue* inner = root.find("messages");
      if (inner == nullptr || !inner->is(Kind::array)) {
        fail(ErrorKind::bad_input, choice.messages_place, "messages: wanted an array, found {}",
             inner == nullptr ? "nothing" : describe(inner->kind));
      }
      messages = *inner;
    } else if (given.is(Kind::array)) {
      messages = std::move(given);
    } else {
      fail(ErrorKind::bad_input, choice.messages_place, "wanted an array of messages or a chat request, found {}",
           describe(given.kind));
    }
  }
  if (choice.system) {
    const bool has_own = !messages.items.empty() && is_system(messages.items.front());
    if (has_own) messages.items.erase(messages.items.begin());
    messages.items.insert(messages.items.begin(), json_message("system", *choice.system));
  }
  if (choice.prompt) messages.items.push_back(json_message("user", *choice.prompt));
  const bool empty = messages.items.empty();
  if (empty && !may_be_empty) fail(ErrorKind::bad_input, "messages", "wanted at least one message, found none");
  // The reader of requests wants a message; this one stands for those to come.
  if (empty) messages.items.push_back(json_message("user", ""));
  set(root, "messages", std::move(messages));
  if (choice.tools) {
    JsonValue tools = parse_json_value(*choice.tools, choice.tools_place);
    if (!tools.is(Kind::array))
      fail(ErrorKind::bad_input, choice.tools_place, "wanted an array, found {}", describe(tools.kind));
    set(root, "tools", std::move(tools));
  }
  if (choice.thinking) {
    drop_setting(root, {"thinking", "enable_thinking"});
    root.members.emplace_back("thinking", json_bool(*choice.thinking));
  }
  if (choice.thinking_effort) {
    drop_setting(root, {"thinking_effort", "reasoning_effort", "reasoning"});
    root.members.emplace_back("thinking_effort", json_string(*choice.thinking_effort));
  }
  RequestChoice made;
  made.sampling = SamplingChoice::read(root, "chat request");
  made.max_tokens = read_max_tokens(root);
  made.request = parse_chat_request(root);
  std::vector<std::string_view> carried_out(std::begin(kSamplingFields), std::end(kSamplingFields));
  carried_out.emplace_back("stream");  // how an answer is shown is the flags' matter
  note_other_fields(root, carried_out, "weft generate", made.request.notes);
  if (empty) made.request.messages.clear();
  return made;
}

}  // namespace weft
