#include "text/xtml_renderer.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tag.h"
#include "text/unicode.h"

namespace weft {
namespace {

// 2.4
constexpr std::string_view kToolsHead = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
constexpr std::string_view kMoreToolsHead =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n";
constexpr std::string_view kJsonTail = "\n```";
constexpr std::string_view kEffort =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported "
    "values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={}`.";
constexpr std::string_view kChoiceRequired =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
constexpr std::string_view kChoiceNone =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.";
constexpr std::string_view kChoiceNamed =
    "The system is invoked with `tool_choice=specified`.\nYou MUST call the tool `{}` in the next message.";
constexpr std::string_view kRawJson =
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.";

bool is_blank(std::string_view text) {
  const uint8_t* classes = char_classes();
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (!step.good || !(classes[step.code] & kSpace)) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

using Attribute = std::pair<std::string_view, std::string_view>;

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request) {}

  RenderedPrompt render() {
    prompt_.thinking = request_.thinking;
    if (request_.tools) generated_message("tool-declare", declaration(kToolsHead, *request_.tools));
    if (request_.thinking && request_.thinking_effort)
      generated_message("thinking-effort", fmt::format(fmt::runtime(kEffort), *request_.thinking_effort));
    const size_t closed = request_.messages.size() - (request_.continue_final ? 1 : 0);
    for (size_t i = 0; i < closed;) {
      if (request_.messages[i].role != Role::tool) {
        message(request_.messages[i++]);
        continue;
      }
      size_t end = i;
      while (end < closed && request_.messages[end].role == Role::tool) ++end;
      tool_results(i, end);
      i = end;
    }
    tool_choice();
    response_format();
    if (request_.continue_final) {
      open_turn(request_.messages.back());
    } else if (request_.add_generation_prompt) {
      generation_prompt();
    }
    return std::move(prompt_);
  }

 private:
  void control(std::string_view marker) { prompt_.segments.push_back({std::string(marker), true}); }
  void plain(std::string_view text) {
    if (!text.empty()) prompt_.segments.push_back({std::string(text), false});
  }
  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    control("<|open|>");
    plain(tag);
    for (const auto& [key, value] : attributes) attribute(key, value);
    control("<|sep|>");
  }
  void attribute(std::string_view key, std::string_view value) {
    plain(fmt::format(" {}", key));
    plain("=\"");
    plain(escape_attribute(value));
    plain("\"");
  }
  void close(std::string_view tag) {
    control("<|close|>");
    plain(tag);
    control("<|sep|>");
  }
  void end_message() {
    close("message");
    control("<|end_of_msg|>");
  }
  // role, and name if there is one
  void open_message(std::string_view role, std::string_view name) {
    if (name.empty()) {
      open("message", {{"role", role}});
    } else {
      open("message", {{"role", role}, {"name", name}});
    }
  }
  void contents(const ChatMessage& message) {
    for (const std::string& part : message.content) plain(part);
  }
  void generated_message(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    plain(body);
    end_message();
  }
  static std::string declaration(std::string_view head, const JsonValue& tools) {
    return fmt::format("{}{}{}", head, write_json(tools, {.sort_keys = true}), kJsonTail);
  }

  void message(const ChatMessage& message) {
    switch (message.role) {
      case Role::system:
      case Role::developer:
        // A dynamic declaration owns its message, and content beside it is left out.
        if (message.tools) return generated_message("tool-declare", declaration(kMoreToolsHead, *message.tools));
        open_message("system", message.name);
        contents(message);
        break;
      case Role::user:
        open_message("user", message.name);
        contents(message);
        break;
      case Role::assistant:
        calls_ = &message.tool_calls;
        results_ = 0;
        assistant(message);
        break;
      case Role::tool: break;  // tool_results
    }
    end_message();
  }

  // 2.5
  void assistant(const ChatMessage& message) {
    open_message("assistant", message.name);
    think_channel(message);
    open("response");
    contents(message);
    close("response");
    if (message.tool_calls.empty()) return;
    open("tools");
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      open("call", {{"tool", message.tool_calls[i].name}, {"index", std::to_string(i + 1)}});
      arguments(message.tool_calls[i]);
      close("call");
    }
    close("tools");
  }
  void think_channel(const ChatMessage& message) {
    if (!request_.thinking) return;
    open("think");
    if (message.reasoning && !is_blank(*message.reasoning)) plain(*message.reasoning);
    close("think");
  }

  void arguments(const RequestToolCall& call) {
    if (call.arguments_object) {
      for (const auto& [key, value] : call.arguments_object->members) argument(key, value, write_json(value, {.spaced = true}));
      return;
    }
    if (!call.arguments || is_blank(*call.arguments)) return;
    // A model may have written a key twice: its text comes back as it was.
    const auto object = try_parse_json_value(*call.arguments, {.duplicate_keys = true});
    if (!object || !object->is(JsonValue::Kind::object)) {
      open("json", {{"type", "object"}});
      plain(*call.arguments);
      close("json");
      return;
    }
    for (const auto& [key, value] : object->members)
      argument(key, value, std::string_view(*call.arguments).substr(value.begin, value.end - value.begin));
  }
  void argument(std::string_view key, const JsonValue& value, std::string_view literal) {
    constexpr std::string_view kTypes[] = {"null", "boolean", "number", "string", "array", "object"};
    open("argument", {{"key", key}, {"type", kTypes[static_cast<size_t>(value.kind)]}});
    plain(value.is(JsonValue::Kind::string) ? std::string_view(value.text) : literal);
    close("argument");
  }

  // 2.6: a run of tool messages is put in the order of its calls when every one of them names a call.
  void tool_results(size_t begin, size_t end) {
    struct Result {
      const ChatMessage* message;
      const RequestToolCall* call;  // the matched one
    };
    std::map<std::string_view, size_t> positions;
    const size_t call_count = calls_ == nullptr ? 0 : calls_->size();
    for (size_t i = 0; i < call_count; ++i) {
      if (!(*calls_)[i].id.empty()) positions.emplace((*calls_)[i].id, i);
    }
    std::vector<Result> results;
    bool all_match = true;
    for (size_t i = begin; i < end; ++i) {
      const auto found = positions.find(request_.messages[i].tool_call_id);
      all_match = all_match && found != positions.end();
      results.push_back({&request_.messages[i], found == positions.end() ? nullptr : &(*calls_)[found->second]});
    }
    if (all_match)
      std::stable_sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.call < b.call; });
    for (const Result& result : results) {
      const ChatMessage& message = *result.message;
      std::string_view tool = all_match ? std::string_view(result.call->name) : std::string_view(message.tool);
      if (tool.empty()) tool = message.name;
      if (tool.empty() && results_ < call_count) tool = (*calls_)[results_].name;
      if (tool.empty())
        fail(ErrorKind::bad_input, "chat request",
             "messages[{}].tool_call_id: wanted the id of a call of the assistant turn before, or a name, found neither",
             message.index);
      ++results_;
      open("message", {{"role", "tool"}, {"tool", tool}, {"index", std::to_string(results_)}});
      contents(message);
      end_message();
    }
  }

  void tool_choice() {
    switch (request_.tool_choice.kind) {
      case ToolChoice::Kind::automatic: break;
      case ToolChoice::Kind::required: generated_message("tool-choice", kChoiceRequired); break;
      case ToolChoice::Kind::none: generated_message("tool-choice", kChoiceNone); break;
      case ToolChoice::Kind::named:
        generated_message("tool-choice", fmt::format(fmt::runtime(kChoiceNamed), request_.tool_choice.name));
        break;
    }
  }

  void response_format() {
    switch (request_.response_format.kind) {
      case ResponseFormat::Kind::text: break;
      case ResponseFormat::Kind::json_object:
        generated_message("response-format",
                          fmt::format("The system is invoked with `response_format=json_object`.\n{}", kRawJson));
        break;
      case ResponseFormat::Kind::json_schema:
        generated_message("response-format",
                          fmt::format("The system is invoked with `response_format=json_schema`.\n{}\n"
                                      "The JSON data must match the following schema:\n```json\n{}{}",
                                      kRawJson, write_json(request_.response_format.schema, {.sort_keys = true}), kJsonTail));
        break;
    }
  }

  void generation_prompt() {
    open("message", {{"role", "assistant"}});
    if (!request_.prefill_channel) return;
    open(request_.thinking ? "think" : "response");
    prompt_.start = request_.thinking ? ParserStart::think : ParserStart::response;
  }

  // 2.10
  void open_turn(const ChatMessage& message) {
    open_message("assistant", message.name);
    think_channel(message);
    open("response");
    contents(message);
    prompt_.start = ParserStart::response;
  }

  const ChatRequest& request_;
  RenderedPrompt prompt_;
  const std::vector<RequestToolCall>* calls_ = nullptr;  // of the last assistant turn
  size_t results_ = 0;                                   // tool messages since it
};

}  // namespace

RenderedPrompt render_xtml(const ChatRequest& request) { return Renderer(request).render(); }

}  // namespace weft
