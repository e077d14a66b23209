#include "server/api/prompt_fields.h"

#include <set>

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostTools = 512;
constexpr size_t kLongestToolName = 128;
constexpr size_t kLongestSchemaName = 64;
constexpr std::string_view kWordCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

// `tools` of a request or of a message.
void check_tools(const RequestFields& fields) {
  const JsonValue* tools = fields.get("tools", Kind::array);
  if (tools == nullptr) return;
  if (tools->items.size() > kMostTools) {
    throw bad_request(fmt::format("{}: wanted at most {}, found {}", fields.where("tools"), kMostTools, tools->items.size()),
                      fields.where("tools"));
  }
  std::set<std::string, std::less<>> seen;
  for (size_t i = 0; i < tools->items.size(); ++i) {
    const RequestFields tool(tools->items[i], fmt::format("{}[{}]", fields.where("tools"), i));
    const std::string type = tool.string("type").value_or("function");
    if (type != "function") tool.refuse("type", "'function'", tool.get("type"));
    const JsonValue* inner = tool.get("function", Kind::object);
    if (inner == nullptr) tool.refuse("function", "an object", nullptr);
    const RequestFields function(*inner, tool.where("function"));
    const std::string name = function.string("name").value_or("");
    const std::string of = std::string(kWordCharacters) + ".:";
    if (name.empty() || name.size() > kLongestToolName || name.find_first_not_of(of) != std::string::npos) {
      function.refuse("name", fmt::format("1 to {} letters, digits and _ . : -", kLongestToolName), function.get("name"));
    }
    if (!seen.insert(name).second) function.refuse("name", "each name once", function.get("name"));
    function.check("description", Kind::string);
    function.check("parameters", Kind::object);
    function.check("strict", Kind::boolean);
  }
}

// Of a request that parse_chat_request() takes. A user has said something; an assistant may have called or thought alone, and a
// tool need not have an answer (R23).
void check_messages(const JsonValue& root) {
  const JsonValue* messages = root.find("messages");
  for (size_t i = 0; i < messages->items.size(); ++i) {
    const RequestFields message(messages->items[i], fmt::format("messages[{}]", i));
    check_tools(message);
    const JsonValue* calls = message.get("tool_calls", Kind::array);
    for (size_t j = 0; calls != nullptr && j < calls->items.size(); ++j) {
      const RequestFields call(calls->items[j], fmt::format("{}[{}]", message.where("tool_calls"), j));
      if (call.string("type").value_or("function") != "function") call.refuse("type", "'function'", call.get("type"));
    }
    message.check("refusal", Kind::string);
    const std::string role = message.string("role").value_or("");
    const JsonValue* tools = message.get("tools");
    const bool may_be_silent = role == "assistant" || role == "tool" || (tools != nullptr && !tools->items.empty());
    if (!may_be_silent && message.get("content") == nullptr)
      message.refuse("content", "a string or an array of parts", messages->items[i].find("content"));
    // A declaration of tools owns its message: what stands beside it would not be rendered (2.4).
    const JsonValue* content = message.get("content");
    const bool says = content != nullptr && (!content->text.empty() || !content->items.empty());
    if (says && tools != nullptr && !tools->items.empty())
      throw bad_request(message.where("content") + ": wanted nothing beside tools, found some", message.where("content"));
  }
}

void check_response_format(const RequestFields& fields) {
  const JsonValue* value = fields.get("response_format", Kind::object);
  if (value == nullptr) return;
  const RequestFields format(*value, fields.where("response_format"));
  const JsonValue* inner = format.get("json_schema", Kind::object);
  if (inner == nullptr) return;
  const RequestFields schema(*inner, format.where("json_schema"));
  for (const char* key : {"schema", "json_schema"}) {
    const JsonValue* found = inner->find(key);
    if (found != nullptr && !found->is(Kind::object)) schema.refuse(key, "an object", found);
  }
  check_schema_fields(schema);
}

}  // namespace

ChatRequest read_chat_request(const JsonValue& root) {
  const RequestFields fields(root);
  check_tools(fields);
  ChatRequest request = parse_chat_request(root);
  check_messages(root);
  check_response_format(fields);
  if (const JsonValue* options = fields.get("options", Kind::object)) check_response_format(RequestFields(*options, "options"));
  return request;
}

void check_schema_fields(const RequestFields& schema) {
  const std::string name = schema.string("name").value_or("");
  if (name.empty() || name.size() > kLongestSchemaName || name.find_first_not_of(kWordCharacters) != std::string::npos)
    schema.refuse("name", fmt::format("1 to {} letters, digits, _ and -", kLongestSchemaName), schema.get("name"));
  schema.check("description", Kind::string);
  schema.check("strict", Kind::boolean);
}

}  // namespace weft::api
