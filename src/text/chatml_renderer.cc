#include "text/chatml_renderer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

// 4.1; what stands between them are control tokens.
constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within ";
constexpr std::string_view kToolsForm = " XML tags:\n";
constexpr std::string_view kToolsCall = "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n";

std::string_view without_leading_breaks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view without_trailing_breaks(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

// What a message of the assistant is made of.
struct Answer {
  std::string reasoning;
  std::string content;
};

class Renderer {
 public:
  Renderer(const ChatRequest& request, const ChatTemplate& chat_template) : request_(request), template_(chat_template) {}

  RenderedPrompt render() {
    const bool thinks = request_.asked_thinking.value_or(true);
    prompt_.thinking = template_.can_turn_off ? thinks : template_.opens_think;
    add_notes();
    find_last_query();
    const auto& messages = request_.messages;
    const bool system_first = is_system(messages.front());
    head(system_first);
    for (size_t i = system_first ? 1 : 0; i < messages.size(); ++i) message(i);
    if (request_.add_generation_prompt && !request_.continue_final) generation_prompt();
    return std::move(prompt_);
  }

 private:
  static bool is_system(const ChatMessage& message) { return message.role == Role::system || message.role == Role::developer; }
  static std::string content_of(const ChatMessage& message) {
    std::string joined;
    for (const std::string& part : message.content) joined += part;
    return joined;
  }

  void control(std::string_view marker) { prompt_.segments.push_back({std::string(marker), true}); }
  void plain(std::string_view text) {
    if (text.empty()) return;
    if (prompt_.segments.empty() || prompt_.segments.back().is_control) prompt_.segments.push_back({{}, false});
    prompt_.segments.back().bytes += text;
  }
  void open(std::string_view role) {
    control("<|im_start|>");
    plain(role);
  }
  void close() {
    control("<|im_end|>");
    plain("\n");
  }

  // What the request asks for and the template has no place for.
  void add_notes() {
    const auto note = [&](std::string text) { prompt_.notes.push_back(std::move(text)); };
    const bool fixed = !template_.can_turn_off;
    if (fixed && request_.asked_thinking && *request_.asked_thinking != template_.opens_think)
      note(fmt::format("thinking cannot be turned {}: the chat template is {}", *request_.asked_thinking ? "on" : "off",
                       template_.description()));
    if (request_.asked_effort) note("the thinking effort is not carried out: the chat template has no levels");
    if (!request_.prefill_channel) note("'prefill_channel' is not carried out: the chat template decides how an answer begins");
    const auto count = [&](auto&& test) { return std::ranges::count_if(request_.messages, test); };
    if (const auto names = count([](const ChatMessage& m) { return m.role != Role::tool && !m.name.empty(); }); names > 0)
      note(fmt::format("'messages[].name' is not rendered: the chat template has no place for it ({} times)", names));
    if (template_.keeps_reasoning) return;
    if (const auto reasonings = count([](const ChatMessage& m) { return m.reasoning && !m.reasoning->empty(); });
        reasonings > 0)
      note(fmt::format("'messages[].reasoning_content' is not rendered: the chat template has no place for it ({} times)",
                       reasonings));
  }

  // The last message of the user that is no result of a tool: reasoning before it is dropped (4.2).
  void find_last_query() {
    last_query_ = request_.messages.size() - 1;
    for (size_t i = request_.messages.size(); i-- > 0;) {
      if (request_.messages[i].role != Role::user) continue;
      const std::string content = content_of(request_.messages[i]);
      if (content.starts_with("<tool_response>") && content.ends_with("</tool_response>")) continue;
      last_query_ = i;
      return;
    }
  }

  void head(bool system_first) {
    const std::string content = system_first ? content_of(request_.messages.front()) : std::string();
    if (system_first) refuse_tools(request_.messages.front());
    if (!request_.tools && !system_first) return;
    open("system");
    plain("\n");
    plain(content);
    if (request_.tools) {
      if (system_first) plain("\n\n");
      plain(kToolsHead);
      for (const JsonValue& tool : request_.tools->items) {
        plain("\n");
        plain(write_json(tool, {.spaced = true}));
      }
      plain(kToolsTail);
      control("<tool_call>");
      control("</tool_call>");
      plain(kToolsForm);
      control("<tool_call>");
      plain(kToolsCall);
      control("</tool_call>");
    }
    close();
  }

  static void refuse_tools(const ChatMessage& message) {
    if (message.tools)
      fail(ErrorKind::unsupported, "chat request", "messages[{}].tools: wanted tools beside the messages, found them in one",
           message.index);
  }

  void message(size_t i) {
    const ChatMessage& message = request_.messages[i];
    switch (message.role) {
      case Role::system:
      case Role::developer: refuse_tools(message); return whole("system", message);
      case Role::user: return whole("user", message);
      case Role::assistant: return assistant(i);
      case Role::tool: return tool_result(i);
    }
  }

  void whole(std::string_view role, const ChatMessage& message) {
    open(role);
    plain("\n");
    plain(content_of(message));
    close();
  }

  void assistant(size_t i) {
    const ChatMessage& message = request_.messages[i];
    const bool is_last = i + 1 == request_.messages.size();
    const Answer answer = answer_of(message);
    open("assistant");
    plain("\n");
    const bool shows_reasoning = template_.keeps_reasoning && i > last_query_ && (is_last || !answer.reasoning.empty());
    if (shows_reasoning) {
      control("<think>");
      plain("\n");
      plain(without_trailing_breaks(without_leading_breaks(answer.reasoning)));
      plain("\n");
      control("</think>");
      plain("\n\n");
    }
    const std::string_view content = shows_reasoning ? without_leading_breaks(answer.content) : answer.content;
    plain(content);
    for (size_t call = 0; call < message.tool_calls.size(); ++call) {
      if (call > 0 || !answer.content.empty()) plain("\n");
      tool_call(message.tool_calls[call]);
    }
    if (is_last && request_.continue_final) {
      prompt_.start = content.empty() ? ParserStart::start : ParserStart::response;
    } else {
      close();
    }
  }

  [[nodiscard]] Answer answer_of(const ChatMessage& message) const {
    Answer answer{message.reasoning.value_or(""), content_of(message)};
    constexpr std::string_view kOpen = "<think>";
    constexpr std::string_view kClose = "</think>";
    if (!template_.keeps_reasoning || message.reasoning || answer.content.find(kClose) == std::string::npos) return answer;
    const std::string whole = std::move(answer.content);
    std::string_view before = without_trailing_breaks(std::string_view(whole).substr(0, whole.find(kClose)));
    if (const size_t opened = before.rfind(kOpen); opened != before.npos) before.remove_prefix(opened + kOpen.size());
    answer.reasoning = without_leading_breaks(before);
    answer.content = without_leading_breaks(std::string_view(whole).substr(whole.rfind(kClose) + kClose.size()));
    return answer;
  }

  void tool_call(const RequestToolCall& call) {
    control("<tool_call>");
    plain(fmt::format("\n{{\"name\": \"{}\", \"arguments\": ", call.name));
    if (call.arguments) {
      plain(*call.arguments);
    } else {
      plain(call.arguments_object ? write_json(*call.arguments_object, {.spaced = true}) : "{}");
    }
    plain("}\n");
    control("</tool_call>");
  }

  void tool_result(size_t i) {
    const auto is_tool = [&](size_t k) { return k < request_.messages.size() && request_.messages[k].role == Role::tool; };
    if (i == 0 || !is_tool(i - 1)) open("user");
    plain("\n");
    control("<tool_response>");
    plain("\n");
    plain(content_of(request_.messages[i]));
    plain("\n");
    control("</tool_response>");
    if (!is_tool(i + 1)) close();
  }

  void generation_prompt() {
    open("assistant");
    plain("\n");
    if (template_.can_turn_off && !prompt_.thinking) {
      control("<think>");
      plain("\n\n");
      control("</think>");
      plain("\n\n");
    } else if (template_.opens_think) {
      control("<think>");
      plain("\n");
      prompt_.start = ParserStart::think;
    }
  }

  const ChatRequest& request_;
  const ChatTemplate& template_;
  RenderedPrompt prompt_;
  size_t last_query_ = 0;
};

}  // namespace

RenderedPrompt render_chatml(const ChatRequest& request, const ChatTemplate& chat_template) {
  return Renderer(request, chat_template).render();
}

}  // namespace weft
