#include "text/chat_request.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>

#include "base/error.h"
#include "base/utf8.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "chat request";
using Kind = JsonValue::Kind;

[[noreturn]] void wanted(std::string_view where, std::string_view what, const JsonValue& found) {
  if (found.is(Kind::string))
    fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found '{}'", where, what, shortened(found.text));
  if (found.is(Kind::number)) fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found {}", where, what, shortened(found.text));
  if (found.is(Kind::boolean)) fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found {}", where, what, found.boolean);
  fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found {}", where, what, describe(found.kind));
}

// Fields that nothing reads, by name, with how often each was met.
class IgnoredFields {
 public:
  void add(const std::string& name) {
    const auto at = std::ranges::find(counts_, name, &std::pair<std::string, int64_t>::first);
    if (at != counts_.end()) {
      ++at->second;
    } else if (counts_.size() < kMostNamed) {
      counts_.emplace_back(name, 1);
    } else {
      ++others_;
    }
  }
  void write(std::vector<std::string>& notes) const {
    for (const auto& [name, count] : counts_)
      notes.push_back(fmt::format("'{}' is not a known field and was ignored{}", shortened(name, kLongest),
                                  count > 1 ? fmt::format(" ({} times)", count) : ""));
    if (others_ > 0) notes.push_back(fmt::format("further unknown fields were ignored ({} in all)", others_));
  }

 private:
  static constexpr size_t kMostNamed = 16;
  static constexpr size_t kLongest = 60;  // bytes of a name

  std::vector<std::pair<std::string, int64_t>> counts_;
  int64_t others_ = 0;
};

// Clients send back what an answer held, absent things included.
bool asks_nothing(const JsonValue& value) { return value.is(Kind::null) || (value.is(Kind::array) && value.items.empty()); }

// The members of an object, with the path that names it in errors. Null counts as absent unless asked for as it is.
class Fields {
 public:
  Fields(const JsonValue& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is(Kind::object)) wanted(path_.empty() ? "the request" : path_, "an object", object);
  }

  [[nodiscard]] std::string where(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }
  // Notes each member that is not among `known`, under the name `as` for this object.
  void note_unknown(std::span<const std::string_view> known, std::string_view as, IgnoredFields& ignored) const {
    for (const auto& [key, value] : object_.members) {
      if (!asks_nothing(value) && std::ranges::find(known, key) == known.end())
        ignored.add(as.empty() ? key : fmt::format("{}.{}", as, key));
    }
  }
  void note_unknown(std::initializer_list<std::string_view> known, std::string_view as, IgnoredFields& ignored) const {
    note_unknown(std::span(known.begin(), known.size()), as, ignored);
  }
  [[nodiscard]] const JsonValue* raw(std::string_view key) const { return object_.find(key); }
  [[nodiscard]] const JsonValue* get(std::string_view key) const {
    const JsonValue* value = raw(key);
    return value != nullptr && value->is(Kind::null) ? nullptr : value;
  }
  [[nodiscard]] const JsonValue* get(std::string_view key, Kind kind) const {
    const JsonValue* value = get(key);
    if (value != nullptr && !value->is(kind)) wanted(where(key), fmt::format("{} or null", describe(kind)), *value);
    return value;
  }
  [[nodiscard]] std::string string(std::string_view key) const {
    const JsonValue* value = get(key, Kind::string);
    return value == nullptr ? std::string() : value->text;
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const JsonValue* value = get(key, Kind::boolean);
    return value == nullptr ? std::nullopt : std::optional(value->boolean);
  }
  // A non-empty array, or nothing for one that is empty, null or absent.
  [[nodiscard]] const JsonValue* filled_array(std::string_view key) const {
    const JsonValue* value = get(key, Kind::array);
    return value == nullptr || value->items.empty() ? nullptr : value;
  }

 private:
  const JsonValue& object_;
  std::string path_;
};

// Of the top level and of `options`.
constexpr std::array<std::string_view, 10> kPromptFields{
    "tool_choice", "response_format",       "chat_template_kwargs",   "thinking",       "thinking_effort", "reasoning_effort",
    "reasoning",   "add_generation_prompt", "continue_final_message", "prefill_channel"};

std::optional<Role> role_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles{{{"system", Role::system},
                                                                     {"developer", Role::developer},
                                                                     {"user", Role::user},
                                                                     {"assistant", Role::assistant},
                                                                     {"tool", Role::tool}}};
  for (const auto& [text, role] : kRoles) {
    if (text == name) return role;
  }
  return std::nullopt;
}

// 2.2: absent or null is nothing; a string; or text parts in order.
std::vector<std::string> read_content(const Fields& message, Role role, IgnoredFields& ignored) {
  const JsonValue* content = message.get("content");
  if (content == nullptr) return {};
  if (content->is(Kind::string)) return {content->text};
  if (!content->is(Kind::array)) wanted(message.where("content"), "a string, an array of parts or null", *content);
  std::vector<std::string> parts;
  for (size_t i = 0; i < content->items.size(); ++i) {
    const Fields part(content->items[i], message.where(fmt::format("content[{}]", i)));
    const JsonValue* type = part.raw("type");
    if (type == nullptr) fail(ErrorKind::bad_input, kPlace, "{}: wanted a string, found nothing", part.where("type"));
    if (!type->is(Kind::string)) wanted(part.where("type"), "a string", *type);
    if (type->text == "image_url" || type->text == "image") {
      if (role == Role::tool)
        fail(ErrorKind::bad_input, kPlace, "{}: wanted text in a tool message, found an image", part.where("type"));
      fail(ErrorKind::unsupported, kPlace, "{}: wanted text, found an image, which this program does not read",
           part.where("type"));
    }
    if (type->text != "text") wanted(part.where("type"), "'text'", *type);
    const JsonValue* text = part.raw("text");
    if (text == nullptr) fail(ErrorKind::bad_input, kPlace, "{}: wanted a string, found nothing", part.where("text"));
    if (!text->is(Kind::string)) wanted(part.where("text"), "a string", *text);
    parts.push_back(text->text);
    part.note_unknown({"type", "text"}, "messages[].content[]", ignored);
  }
  return parts;
}

// An array of objects.
std::optional<JsonValue> read_tools(const Fields& fields) {
  const JsonValue* tools = fields.filled_array("tools");
  if (tools == nullptr) return std::nullopt;
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const Fields tool(tools->items[i], fields.where(fmt::format("tools[{}]", i)));
    const JsonValue* wrapped = tool.get("function");
    const JsonValue* type = tool.get("type");
    // Tools of other types than functions need no name.
    if (wrapped == nullptr && type != nullptr && type->is(Kind::string) && type->text != "function") continue;
    const Fields bare = wrapped == nullptr ? tool : Fields(*wrapped, tool.where("function"));
    if (bare.string("name").empty())
      fail(ErrorKind::bad_input, kPlace, "{}: wanted the name of a function, found none",
           wrapped == nullptr && bare.raw("name") == nullptr ? tool.where("function.name") : bare.where("name"));
  }
  return *tools;
}

std::vector<RequestToolCall> read_tool_calls(const Fields& message, IgnoredFields& ignored) {
  std::vector<RequestToolCall> calls;
  const JsonValue* list = message.filled_array("tool_calls");
  if (list == nullptr) return calls;
  for (size_t i = 0; i < list->items.size(); ++i) {
    const Fields call(list->items[i], message.where(fmt::format("tool_calls[{}]", i)));
    // A call without `function` holds name and arguments itself.
    const JsonValue* wrapped = call.get("function");
    const Fields function = wrapped == nullptr ? call : Fields(*wrapped, call.where("function"));
    RequestToolCall& read = calls.emplace_back();
    constexpr std::string_view kCallName = "messages[].tool_calls[]";
    if (wrapped == nullptr) {
      call.note_unknown({"id", "type", "index", "name", "arguments"}, kCallName, ignored);
    } else {
      call.note_unknown({"id", "type", "index", "function"}, kCallName, ignored);
      function.note_unknown({"name", "arguments"}, fmt::format("{}.function", kCallName), ignored);
    }
    read.id = call.string("id");
    read.name = function.string("name");
    if (read.name.empty())
      fail(ErrorKind::bad_input, kPlace, "{}: wanted the name of the called function, found none", function.where("name"));
    const JsonValue* arguments = function.get("arguments");
    if (arguments == nullptr) continue;
    if (arguments->is(Kind::string)) {
      read.arguments = arguments->text;
    } else if (arguments->is(Kind::object)) {
      read.arguments_object = *arguments;
    } else {
      wanted(function.where("arguments"), "a string, an object or null", *arguments);
    }
  }
  return calls;
}

ChatMessage read_message(const JsonValue& value, size_t index, bool last, bool& continue_final, IgnoredFields& ignored) {
  const Fields fields(value, fmt::format("messages[{}]", index));
  const JsonValue* role_value = fields.raw("role");
  if (role_value == nullptr) fail(ErrorKind::bad_input, kPlace, "{}: wanted a role, found nothing", fields.where("role"));
  const auto role = role_value->is(Kind::string) ? role_named(role_value->text) : std::nullopt;
  if (!role) wanted(fields.where("role"), "system, developer, user, assistant or tool", *role_value);
  ChatMessage message;
  message.role = *role;
  message.index = static_cast<int64_t>(index);
  message.name = fields.string("name");
  message.content = read_content(fields, *role, ignored);
  const bool partial = fields.boolean("partial").value_or(false);
  std::vector<std::string_view> known{"role", "name", "content", "partial"};
  switch (*role) {
    case Role::system:
    case Role::developer:
      known.push_back("tools");
      message.tools = read_tools(fields);
      break;
    case Role::user: break;
    case Role::assistant:
      known.insert(known.end(), {"reasoning_content", "reasoning", "tool_calls"});
      for (const std::string_view key : {"reasoning_content", "reasoning"}) {
        const JsonValue* reasoning = fields.get(key, Kind::string);
        if (reasoning != nullptr && (!message.reasoning || message.reasoning->empty())) message.reasoning = reasoning->text;
      }
      message.tool_calls = read_tool_calls(fields, ignored);
      break;
    case Role::tool:
      known.insert(known.end(), {"tool_call_id", "id", "tool"});
      message.tool_call_id = fields.string("tool_call_id");
      if (message.tool_call_id.empty()) message.tool_call_id = fields.string("id");
      message.tool = fields.string("tool");
      break;
  }
  fields.note_unknown(known, "messages[]", ignored);
  if (partial) {
    if (!last || *role != Role::assistant)
      fail(ErrorKind::bad_input, kPlace, "{}: wanted it on a last message of the assistant only, found it on message {} ({})",
           fields.where("partial"), index, role_value->text);
    continue_final = true;
  }
  return message;
}

std::string_view tool_name(const JsonValue& tool) {
  const JsonValue* function = tool.find("function");
  const JsonValue* name = function != nullptr ? function->find("name") : tool.find("name");
  return name != nullptr && name->is(Kind::string) ? std::string_view(name->text) : std::string_view();
}

// True when some array of tools holds one that `test` accepts.
bool any_tool(const ChatRequest& request, const std::function<bool(const JsonValue&)>& test) {
  const auto in = [&](const std::optional<JsonValue>& tools) {
    return tools && std::any_of(tools->items.begin(), tools->items.end(), test);
  };
  return in(request.tools) ||
         std::any_of(request.messages.begin(), request.messages.end(), [&](const ChatMessage& m) { return in(m.tools); });
}

// Names of declared tools; at least one where the field is there.
std::vector<std::string> read_allowed_tools(const Fields& allowed, const ChatRequest& request) {
  const JsonValue* tools = allowed.get("tools", Kind::array);
  std::vector<std::string> names;
  if (tools == nullptr) return names;
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const std::string where = allowed.where(fmt::format("tools[{}]", i));
    const Fields tool(tools->items[i], where);
    const JsonValue* wrapped = tool.get("function");
    const std::string name = wrapped == nullptr ? tool.string("name") : Fields(*wrapped, tool.where("function")).string("name");
    if (!any_tool(request, [&](const JsonValue& declared) { return tool_name(declared) == name; }))
      fail(ErrorKind::bad_input, kPlace, "{}: wanted the name of a declared tool, found '{}'", where, shortened(name));
    names.push_back(name);
  }
  if (names.empty()) fail(ErrorKind::bad_input, kPlace, "{}: wanted at least one tool, found none", allowed.where("tools"));
  return names;
}

ToolChoice read_tool_choice(const Fields& root, ChatRequest& request) {
  const JsonValue* value = root.get("tool_choice");
  if (value == nullptr) return {};
  const auto by_word = [&](const JsonValue& word, std::string_view where, bool none_too) -> ToolChoice {
    if (word.is(Kind::string)) {
      if (word.text == "auto") return {};
      if (word.text == "required") return {.kind = ToolChoice::Kind::required, .name = {}, .allowed = {}};
      if (none_too && word.text == "none") return {.kind = ToolChoice::Kind::none, .name = {}, .allowed = {}};
    }
    wanted(where, none_too ? "auto, none, required or an object" : "auto or required", word);
  };
  ToolChoice choice;
  if (value->is(Kind::object)) {
    const Fields fields(*value, root.where("tool_choice"));
    const std::string type = fields.string("type");
    if (type == "function") {
      const JsonValue* function = fields.get("function");
      const Fields named = function == nullptr ? fields : Fields(*function, fields.where("function"));
      choice = {.kind = ToolChoice::Kind::named, .name = named.string("name"), .allowed = {}};
      if (choice.name.empty())
        fail(ErrorKind::bad_input, kPlace, "{}: wanted a function's name, found none", named.where("name"));
    } else if (type == "allowed_tools") {
      const JsonValue* inner = fields.get("allowed_tools");
      const Fields allowed = inner == nullptr ? fields : Fields(*inner, fields.where("allowed_tools"));
      const JsonValue* mode = allowed.get("mode");
      if (mode == nullptr)
        fail(ErrorKind::bad_input, kPlace, "{}: wanted auto or required, found nothing", allowed.where("mode"));
      choice = by_word(*mode, allowed.where("mode"), false);
      choice.allowed = read_allowed_tools(allowed, request);
    } else {
      fail(ErrorKind::bad_input, kPlace, "{}: wanted 'function' or 'allowed_tools', found '{}'", fields.where("type"),
           shortened(type));
    }
  } else {
    choice = by_word(*value, root.where("tool_choice"), true);
  }
  if (choice.kind == ToolChoice::Kind::required && !any_tool(request, [](const JsonValue&) { return true; }))
    fail(ErrorKind::bad_input, kPlace, "{}: wanted declared tools beside 'required', found none", root.where("tool_choice"));
  if (choice.kind == ToolChoice::Kind::named &&
      !any_tool(request, [&](const JsonValue& tool) { return tool_name(tool) == choice.name; }))
    fail(ErrorKind::bad_input, kPlace, "{}: wanted the name of a declared tool, found '{}'", root.where("tool_choice"),
         shortened(choice.name));
  return choice;
}

ResponseFormat read_response_format(const Fields& root) {
  const JsonValue* value = root.get("response_format");
  if (value == nullptr) return {};
  const Fields fields(*value, root.where("response_format"));
  const std::string type = fields.string("type");
  if (type == "text") return {};
  ResponseFormat format;
  if (type == "json_object") {
    format.kind = ResponseFormat::Kind::json_object;
    return format;
  }
  if (type != "json_schema")
    fail(ErrorKind::bad_input, kPlace, "{}: wanted text, json_object or json_schema, found '{}'", fields.where("type"),
         shortened(type));
  const JsonValue* outer = fields.get("json_schema", Kind::object);
  if (outer == nullptr)
    fail(ErrorKind::bad_input, kPlace, "{}: wanted an object with the schema, found nothing", fields.where("json_schema"));
  const JsonValue* schema = outer->find("schema");
  if (schema == nullptr) schema = outer->find("json_schema");
  format.kind = ResponseFormat::Kind::json_schema;
  format.schema = schema == nullptr ? *outer : *schema;
  return format;
}

// 2.7. On/off and level are decided apart, each by the first source that says something.
class ThinkingControl {
 public:
  explicit ThinkingControl(ChatRequest& request) : request_(request) {}

  void say_on(std::optional<bool> value) {
    if (!on_) on_ = value;
  }
  void say_effort(std::optional<std::string> level) {
    if (decided_) return;
    decided_ = true;
    request_.thinking_effort = std::move(level);
  }
  // A named tool choice is incompatible with thinking, whatever else is said.
  void apply() {
    request_.asked_thinking = on_;
    request_.asked_effort = decided_;
    request_.thinking = request_.tool_choice.kind != ToolChoice::Kind::named && on_.value_or(true);
  }

  // A field that takes the levels of the prompt, where null leaves the effort message out.
  void read_level(const Fields& fields) {
    const JsonValue* value = fields.raw("thinking_effort");
    if (value == nullptr) return;
    if (value->is(Kind::null)) return say_effort(std::nullopt);
    if (!value->is(Kind::string) || (value->text != "low" && value->text != "high" && value->text != "max"))
      wanted(fields.where("thinking_effort"), "low, high, max or null", *value);
    say_effort(value->text);
  }

  // A field that takes the levels of the OpenAI API.
  void read_reasoning_effort(const Fields& fields, std::string_view key) {
    const JsonValue* value = fields.get(key);
    if (value == nullptr) return;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLevels{
        {{"low", "low"}, {"high", "high"}, {"max", "max"}, {"minimal", "low"}, {"medium", "high"}, {"xhigh", "max"}}};
    if (value->is(Kind::string)) {
      if (value->text == "none") return say_on(false);
      for (const auto& [asked, level] : kLevels) {
        if (asked != value->text) continue;
        if (asked != level && !decided_)
          request_.notes.push_back(fmt::format("{} '{}' is rendered as '{}'", fields.where(key), asked, level));
        return say_effort(std::string(level));
      }
    }
    wanted(fields.where(key), "none, minimal, low, medium, high, xhigh, max or null", *value);
  }

 private:
  ChatRequest& request_;
  std::optional<bool> on_;
  bool decided_ = false;  // the level
};

void read_options(const Fields& root, ChatRequest& request, ThinkingControl& thinking, IgnoredFields& ignored) {
  if (const JsonValue* kwargs = root.get("chat_template_kwargs", Kind::object)) {
    const Fields fields(*kwargs, root.where("chat_template_kwargs"));
    thinking.say_on(fields.boolean("thinking"));
    thinking.say_on(fields.boolean("enable_thinking"));
    thinking.read_level(fields);
    fields.note_unknown({"thinking", "enable_thinking", "thinking_effort"}, root.where("chat_template_kwargs"), ignored);
  }
  if (const JsonValue* value = root.get("thinking")) {
    if (value->is(Kind::boolean)) {
      thinking.say_on(value->boolean);
    } else {
      const Fields fields(*value, root.where("thinking"));
      fields.note_unknown({"type"}, root.where("thinking"), ignored);
      const JsonValue* type = fields.get("type");
      if (type != nullptr && type->is(Kind::string) && (type->text == "enabled" || type->text == "disabled")) {
        thinking.say_on(type->text == "enabled");
      } else {
        static const JsonValue kNothing;
        wanted(fields.where("type"), "enabled or disabled", type == nullptr ? kNothing : *type);
      }
    }
  }
  thinking.read_level(root);
  thinking.read_reasoning_effort(root, "reasoning_effort");
  if (const JsonValue* reasoning = root.get("reasoning", Kind::object)) {
    const Fields fields(*reasoning, root.where("reasoning"));
    thinking.read_reasoning_effort(fields, "effort");
    fields.note_unknown({"effort"}, root.where("reasoning"), ignored);
  }
  if (const auto value = root.boolean("add_generation_prompt")) request.add_generation_prompt = *value;
  if (const auto value = root.boolean("prefill_channel")) request.prefill_channel = *value;
  if (root.boolean("continue_final_message").value_or(false)) {
    if (request.messages.back().role != Role::assistant)
      fail(ErrorKind::bad_input, kPlace,
           "{}: wanted a last message of the assistant to continue, found another role in messages[{}]",
           root.where("continue_final_message"), request.messages.size() - 1);
    request.continue_final = true;
  }
}

}  // namespace

void note_other_fields(const JsonValue& root, std::span<const std::string_view> carried_out, std::string_view by,
                       std::vector<std::string>& notes) {
  // What the API defines and this program has no part in, with the value that asks for nothing.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 21> kKnown{{
      {"n", "1"},
      {"stop", "\"\""},
      {"logit_bias", "{}"},
      {"logprobs", "false"},
      {"top_logprobs", "0"},
      {"stream", "false"},
      {"stream_options", "{}"},
      {"parallel_tool_calls", "true"},
      {"modalities", "[\"text\"]"},
      {"audio", "{}"},
      {"prediction", "{}"},
      {"service_tier", "\"auto\""},
      {"store", "false"},
      {"verbosity", "\"medium\""},
      {"web_search_options", "{}"},
      {"functions", "[]"},
      {"function_call", "\"auto\""},
      {"prompt_cache_retention", "{}"},
      {"ignore_eos", "false"},
      {"min_tokens", "0"},
      {"stop_token_ids", "[]"},
  }};
  // Names and marks for the provider's own books; they ask for nothing.
  constexpr std::array<std::string_view, 5> kMarks{"model", "user", "metadata", "safety_identifier", "prompt_cache_key"};
  constexpr std::array<std::string_view, 2> kWhole{"messages", "tools"};
  const auto in = [](const auto& list, std::string_view key) { return std::ranges::find(list, key) != list.end(); };
  IgnoredFields ignored;
  for (const auto& [key, value] : root.members) {
    if (asks_nothing(value) || in(kPromptFields, key) || in(kWhole, key) || in(kMarks, key) || in(carried_out, key)) continue;
    const auto known = std::ranges::find(kKnown, key, &std::pair<std::string_view, std::string_view>::first);
    if (key == "options" && value.is(Kind::object)) continue;  // its members were noted with the prompt's fields
    if (known == kKnown.end()) {
      ignored.add(key);
    } else if (write_json(value) != known->second) {
      notes.push_back(fmt::format("'{}' is not carried out by {}", key, by));
    }
  }
  ignored.write(notes);
}

bool ChatRequest::calls_discarded() const {
  if (tool_choice.kind == ToolChoice::Kind::none) return true;
  return !any_tool(*this, [](const JsonValue&) { return true; });
}

ChatRequest parse_chat_request(std::string_view json) { return parse_chat_request(parse_json_value(json, kPlace)); }

ChatRequest parse_chat_request(const JsonValue& root_value) {
  const Fields root(root_value, "");
  ChatRequest request;
  const JsonValue* messages = root.get("messages", Kind::array);
  if (messages == nullptr || messages->items.empty())
    fail(ErrorKind::bad_input, kPlace, "messages: wanted a non-empty array, found {}",
         messages == nullptr ? "nothing" : "an empty one");
  IgnoredFields ignored;
  for (size_t i = 0; i < messages->items.size(); ++i)
    request.messages.push_back(
        read_message(messages->items[i], i, i + 1 == messages->items.size(), request.continue_final, ignored));
  request.tools = read_tools(root);

  ThinkingControl thinking(request);
  const JsonValue* options_value = root.get("options", Kind::object);
  std::vector<Fields> sources{root};
  if (options_value != nullptr) sources.emplace_back(*options_value, "options");
  for (const Fields& source : sources) {
    if (request.tool_choice.kind == ToolChoice::Kind::automatic && request.tool_choice.allowed.empty())
      request.tool_choice = read_tool_choice(source, request);
    if (request.response_format.kind == ResponseFormat::Kind::text) request.response_format = read_response_format(source);
  }
  for (const Fields& source : sources) read_options(source, request, thinking, ignored);
  thinking.apply();
  if (options_value != nullptr) sources.back().note_unknown(kPromptFields, "options", ignored);
  ignored.write(request.notes);
  if (request.continue_final && !request.messages.back().tool_calls.empty())
    fail(ErrorKind::bad_input, kPlace, "messages[{}].tool_calls: wanted none in a turn that is to be continued, found {}",
         request.messages.size() - 1, request.messages.back().tool_calls.size());
  return request;
}

}  // namespace weft
