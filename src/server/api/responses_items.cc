#include "server/api/responses_items.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "server/api/request_fields.h"
#include "server/api/service.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

std::string type_of(const RequestFields& item) {
  std::optional<std::string> type = item.string("type");
  if (type) return *type;
  // A message may be written without its type.
  if (item.get("role") == nullptr) item.refuse("type", "the type of an item", nullptr);
  return "message";
}

std::string needed_string(const RequestFields& fields, std::string_view key) {
  std::optional<std::string> text = fields.string(key);
  if (!text) fields.refuse(key, "a string", nullptr);
  return std::move(*text);
}

bool is_text_part(std::string_view type) { return type == "input_text" || type == "output_text" || type == "text"; }

// A string as it is, or parts as those of a chat; null for nothing.
JsonValue content_of(const RequestFields& item, std::string_view key) {
  const JsonValue* content = item.get(key);
  if (content == nullptr) return {};
  if (content->is(Kind::string)) return string_value(content->text);
  if (!content->is(Kind::array)) item.refuse(key, "a string or an array of parts", content);
  std::vector<JsonValue> parts;
  for (size_t i = 0; i < content->items.size(); ++i) {
    const RequestFields part(content->items[i], fmt::format("{}[{}]", item.where(key), i));
    const std::string type = part.string("type").value_or("");
    if (type == "refusal") continue;  // of another model
    if (!is_text_part(type)) part.refuse("type", "input_text or output_text", part.get("type"));
    parts.push_back(object_value({{"type", string_value("text")}, {"text", string_value(needed_string(part, "text"))}}));
  }
  // One part is what a string would be.
  if (parts.size() == 1) return std::move(parts.front().members.back().second);
  return array_value(std::move(parts));
}

// `more` behind `content`, which is some.
void append_content(JsonValue& content, JsonValue more) {
  std::vector<JsonValue> parts;
  for (JsonValue* one : {&content, &more}) {
    if (one->is(Kind::string)) {
      parts.push_back(object_value({{"type", string_value("text")}, {"text", std::move(*one)}}));
    } else {
      std::ranges::move(one->items, std::back_inserter(parts));
    }
  }
  content = array_value(std::move(parts));
}

Json shown_content(const JsonValue* content, std::string_view type) {
  Json parts = Json::array();
  if (content == nullptr || content->is(Kind::null)) return parts;
  if (!content->is(Kind::string)) return json_of(*content);
  Json part;
  part["type"] = type;
  part["text"] = content->text;
  if (type == "output_text") part["annotations"] = Json::array();
  parts.push_back(std::move(part));
  return parts;
}

void add_default(Json& item, const char* key, const Json& value) {
  if (!item.contains(key) || item[key].is_null()) item[key] = value;
}

}  // namespace

JsonValue string_value(std::string text) {
  JsonValue made;
  made.kind = Kind::string;
  made.text = std::move(text);
  return made;
}

JsonValue array_value(std::vector<JsonValue> items) {
  JsonValue made;
  made.kind = Kind::array;
  made.items = std::move(items);
  return made;
}

JsonValue object_value(std::vector<JsonMember> members) {
  JsonValue made;
  made.kind = Kind::object;
  made.members = std::move(members);
  return made;
}

Json json_of(const JsonValue& value) { return parse_json(write_json(value), "request"); }

void ConversationBuilder::add_instructions(const std::string& text) {
  Message& message = messages_.emplace_back();
  message.role = "system";
  message.where = "instructions";
  message.content = string_value(text);
}

void ConversationBuilder::add(const JsonValue& item, const std::string& where) {
  const RequestFields fields(item, where);
  const std::string type = type_of(fields);
  for (const char* key : {"id", "status"}) fields.check(key, Kind::string);
  if (type == "message") return add_message(item, where);
  if (type == "reasoning") return add_reasoning(item, where);
  if (type == "function_call") return add_call(item, where);
  if (type == "function_call_output") return add_result(item, where);
  throw bad_request(fmt::format("{}: wanted message, reasoning, function_call or function_call_output, found {}",
                                fields.where("type"), shown(fields.get("type"))),
                    fields.where("type"), "unsupported_value");
}

ConversationBuilder::Message& ConversationBuilder::turn(const std::string& where, bool fresh) {
  if (fresh || messages_.empty() || messages_.back().role != "assistant") {
    messages_.emplace_back().role = "assistant";
    messages_.back().where = where;
  }
  return messages_.back();
}

void ConversationBuilder::add_message(const JsonValue& item, const std::string& where) {
  const RequestFields fields(item, where);
  const std::string role = needed_string(fields, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    fields.refuse("role", "user, assistant, system or developer", fields.get("role"));
  JsonValue content = content_of(fields, "content");
  if (content.is(Kind::null)) fields.refuse("content", "a string or an array of parts", nullptr);
  if (role != "assistant") {
    Message& message = messages_.emplace_back();
    message.role = role;
    message.where = where;
    message.content = std::move(content);
    return;
  }
  const bool has_text = !messages_.empty() && !messages_.back().content.is(Kind::null);
  // Text behind calls is of their turn: the results, which come next, are looked for there.
  const bool called = !messages_.empty() && !messages_.back().calls.empty();
  Message& message = turn(where, has_text && !called);
  message.where = where;
  if (message.content.is(Kind::null)) {
    message.content = std::move(content);
  } else {
    append_content(message.content, std::move(content));
  }
}

void ConversationBuilder::add_reasoning(const JsonValue& item, const std::string& where) {
  const RequestFields fields(item, where);
  fields.check("summary", Kind::array);
  fields.check("encrypted_content", Kind::string);
  std::string text;
  if (const JsonValue* content = fields.get("content", Kind::array)) {
    for (size_t i = 0; i < content->items.size(); ++i) {
      const RequestFields part(content->items[i], fmt::format("{}[{}]", fields.where("content"), i));
      const std::string type = part.string("type").value_or("");
      if (type != "reasoning_text" && type != "text") part.refuse("type", "reasoning_text", part.get("type"));
      text += needed_string(part, "text");
    }
  }
  const bool answered = !messages_.empty() && (!messages_.back().content.is(Kind::null) || !messages_.back().calls.empty());
  turn(where, answered).reasoning += text;
}

void ConversationBuilder::add_call(const JsonValue& item, const std::string& where) {
  const RequestFields fields(item, where);
  const std::string name = needed_string(fields, "name");
  if (name.empty()) fields.refuse("name", "the name of a function", fields.get("name"));
  turn(where, false)
      .calls.push_back(
          object_value({{"id", string_value(fields.string("call_id").value_or(""))},
                        {"type", string_value("function")},
                        {"function", object_value({{"name", string_value(name)},
                                                   {"arguments", string_value(fields.string("arguments").value_or(""))}})}}));
}

void ConversationBuilder::add_result(const JsonValue& item, const std::string& where) {
  const RequestFields fields(item, where);
  Message message;
  message.role = "tool";
  message.where = where;
  message.call_id = fields.string("call_id").value_or("");
  message.name = fields.string("name").value_or("");
  message.content = content_of(fields, "output");
  if (message.content.is(Kind::null)) fields.refuse("output", "a string or an array of parts", nullptr);
  messages_.push_back(std::move(message));
}

JsonValue ConversationBuilder::take_messages() {
  std::vector<JsonValue> made;
  for (Message& message : std::exchange(messages_, {})) {
    places_.push_back(std::move(message.where));
    std::vector<JsonMember> members{{"role", string_value(message.role)}, {"content", std::move(message.content)}};
    if (message.role == "assistant" && !message.reasoning.empty())
      members.push_back({"reasoning_content", string_value(std::move(message.reasoning))});
    if (!message.calls.empty()) members.push_back({"tool_calls", array_value(std::move(message.calls))});
    if (!message.call_id.empty()) members.push_back({"tool_call_id", string_value(std::move(message.call_id))});
    if (!message.name.empty()) members.push_back({"name", string_value(std::move(message.name))});
    made.push_back(object_value(std::move(members)));
  }
  return array_value(std::move(made));
}

std::string ConversationBuilder::place_of(std::string_view field) const {
  constexpr std::string_view kBefore = "messages[";
  if (!field.starts_with(kBefore)) return "input";
  size_t index = 0;
  const std::string_view number = field.substr(kBefore.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (error != std::errc() || index >= places_.size()) return "input";
  const std::string& place = places_[index];
  if (!place.starts_with("input[")) return place;
  const std::string_view rest(end, static_cast<size_t>(number.data() + number.size() - end));
  return rest == "].tool_call_id" ? place + ".call_id" : place;
}

Json shown_item(const JsonValue& item) {
  Json made = json_of(item);
  add_default(made, "type", "message");
  const std::string type = made["type"];
  if (type == "message") {
    const bool assistant = made["role"] == "assistant";
    add_default(made, "id", random_id("msg_"));
    add_default(made, "status", "completed");
    made["content"] = shown_content(item.find("content"), assistant ? "output_text" : "input_text");
  } else if (type == "reasoning") {
    add_default(made, "id", random_id("rs_"));
    add_default(made, "summary", Json::array());
  } else if (type == "function_call") {
    add_default(made, "id", random_id("fc_"));
    add_default(made, "call_id", "");
    add_default(made, "arguments", "");
    add_default(made, "status", "completed");
  } else {
    add_default(made, "id", random_id("fco_"));
    add_default(made, "status", "completed");
  }
  return made;
}

}  // namespace weft::api
