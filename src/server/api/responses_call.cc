#include "server/api/responses_call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"
#include "server/api/prompt_fields.h"
#include "server/api/request_fields.h"
#include "server/api/responses_items.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

// Fields of both APIs, of the same meaning and form; the later ones are Weft's own.
constexpr std::array<std::string_view, 22> kSame{"model",
                                                 "tool_choice",
                                                 "parallel_tool_calls",
                                                 "temperature",
                                                 "top_p",
                                                 "stream",
                                                 "top_logprobs",
                                                 "top_k",
                                                 "min_p",
                                                 "repetition_penalty",
                                                 "frequency_penalty",
                                                 "presence_penalty",
                                                 "seed",
                                                 "stop",
                                                 "stop_token_ids",
                                                 "ignore_eos",
                                                 "min_tokens",
                                                 "logit_bias",
                                                 "chat_template_kwargs",
                                                 "thinking",
                                                 "thinking_effort",
                                                 "include_reasoning"};

// Fields that are read here, or that ask for nothing.
constexpr std::array<std::string_view, 22> kOwn{"input",
                                                "instructions",
                                                "previous_response_id",
                                                "tools",
                                                "text",
                                                "reasoning",
                                                "max_output_tokens",
                                                "store",
                                                "metadata",
                                                "truncation",
                                                "include",
                                                "user",
                                                "background",
                                                "conversation",
                                                "prompt",
                                                "stream_options",
                                                "max_tool_calls",
                                                "service_tier",
                                                "safety_identifier",
                                                "prompt_cache_key",
                                                "prompt_cache_retention",
                                                "prompt_cache_options"};

constexpr std::string_view kLogprobs = "message.output_text.logprobs";

template <class List>
bool holds(const List& list, std::string_view key) {
  return std::ranges::find(list, key) != list.end();
}

JsonValue boolean_value(bool value) {
  JsonValue made;
  made.kind = Kind::boolean;
  made.boolean = value;
  return made;
}

// The chat request's name of a field, as this API has it.
std::string own_name(const std::string& field, const ConversationBuilder& conversation) {
  constexpr std::string_view kSchema = "response_format.json_schema";
  constexpr std::string_view kFormat = "response_format";
  constexpr std::string_view kFunction = "].function";
  if (field.starts_with("messages")) return conversation.place_of(field);
  if (field == "max_tokens" || field == "max_completion_tokens") return "max_output_tokens";
  if (field.starts_with(kSchema)) return "text.format.schema" + field.substr(kSchema.size());
  if (field.starts_with(kFormat)) return "text.format" + field.substr(kFormat.size());
  const size_t function = field.find(kFunction);
  if (field.starts_with("tools[") && function != std::string::npos)
    return field.substr(0, function + 1) + field.substr(function + kFunction.size());
  return field;
}

ApiError own_error(ApiError error, const ConversationBuilder& conversation) {
  // "response_format.json_schema#/properties/a: ..." has a place within the schema behind its field.
  const size_t inside = error.message.find('#');
  if (!error.param && inside != std::string::npos && inside < error.message.find(' '))
    error.param = error.message.substr(0, inside);
  if (!error.param) return error;
  const std::string name = own_name(*error.param, conversation);
  if (error.message.starts_with(*error.param)) error.message = name + error.message.substr(error.param->size());
  error.param = name;
  return error;
}

// "response_format is not enforced: ..."
std::string own_note(const std::string& note, const ConversationBuilder& conversation) {
  const size_t end = note.find_first_of(" :");
  if (end == std::string::npos) return note;
  return own_name(note.substr(0, end), conversation) + note.substr(end);
}

// Requests whose answer would be another one without these.
void check_refused(const RequestFields& fields) {
  const auto refuse = [&](const char* key, const char* why) {
    throw bad_request(fmt::format("{}: {}", key, why), key, "unsupported_value");
  };
  if (fields.boolean("background").value_or(false)) refuse("background", "this server answers only while the client waits");
  if (fields.get("conversation") != nullptr) refuse("conversation", "is not supported: use previous_response_id");
  if (fields.get("prompt") != nullptr) refuse("prompt", "this server has no stored prompts");
}

// Those that are carried out by nobody.
void check_others(const RequestFields& fields) {
  for (const char* key : {"service_tier", "prompt_cache_retention"}) fields.check(key, Kind::string);
  static_cast<void>(fields.integer("max_tool_calls", 1, INT64_MAX));
  const JsonValue* options = fields.get("stream_options", Kind::object);
  if (options != nullptr) RequestFields(*options, "stream_options").check("include_obfuscation", Kind::boolean);
}

// {"type": "function", "name", ...} -> {"type": "function", "function": {"name", ...}}
JsonValue chat_tools(const JsonValue& tools) {
  std::vector<JsonValue> made;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const RequestFields tool(tools.items[i], fmt::format("tools[{}]", i));
    const std::string type = tool.string("type").value_or("function");
    if (type != "function") {
      throw bad_request(fmt::format("{}: wanted function, found {}: this server has no tools of its own", tool.where("type"),
                                    shown(tool.get("type"))),
                        tool.where("type"), "unsupported_value");
    }
    std::vector<JsonMember> function;
    for (const JsonMember& member : tools.items[i].members) {
      if (member.first != "type") function.push_back(member);
    }
    made.push_back(object_value({{"type", string_value("function")}, {"function", object_value(std::move(function))}}));
  }
  return array_value(std::move(made));
}

// text.format -> response_format
JsonValue chat_format(const RequestFields& text) {
  const JsonValue* value = text.get("format");
  if (value == nullptr) return {};
  const RequestFields format(*value, text.where("format"));
  const std::string type = format.string("type").value_or("");
  if (type == "text" || type == "json_object") return object_value({{"type", string_value(type)}});
  if (type != "json_schema") format.refuse("type", "text, json_object or json_schema", format.get("type"));
  const JsonValue* schema = format.get("schema", Kind::object);
  if (schema == nullptr) format.refuse("schema", "an object", nullptr);
  check_schema_fields(format);
  std::vector<JsonMember> inner{{"schema", *schema}, {"name", *format.get("name")}};
  if (const std::optional<bool> strict = format.boolean("strict")) inner.push_back({"strict", boolean_value(*strict)});
  return object_value({{"type", string_value("json_schema")}, {"json_schema", object_value(std::move(inner))}});
}

class Reader {
 public:
  Reader(const JsonValue& root, const Service& service, ResponsesStore& store)
      : root_(root), fields_(root), service_(service), store_(store), call_(std::make_shared<ResponsesCall>()) {}

  std::shared_ptr<const ResponsesCall> read() {
    check_refused(fields_);
    check_others(fields_);
    const std::optional<bool> store = fields_.boolean("store");
    call_->store = store.value_or(true);
    if (store.value_or(false) && !store_.keeps()) call_->notes.emplace_back("store: this server keeps no responses");
    note_fields();
    read_items();
    JsonValue chat = chat_request();
    try {
      call_->chat = read_chat_call(chat, service_);
    } catch (...) {
      throw own_error(current_error(), conversation_);
    }
    for (const std::string& note : call_->chat->notes) call_->notes.push_back(own_note(note, conversation_));
    call_->input = json_text(items_);
    write_settings();
    return call_;
  }

 private:
  void note_fields() {
    for (const JsonMember& member : root_.members) {
      if (member.second.is(Kind::null) || holds(kSame, member.first) || holds(kOwn, member.first)) continue;
      log::info("request: '{}' is not a known field", shortened(member.first));
      call_->notes.push_back(fmt::format("'{}' is not a known field and was ignored", shortened(member.first)));
    }
    const std::string truncation = fields_.string("truncation").value_or("disabled");
    if (truncation == "auto") {
      call_->notes.emplace_back("truncation 'auto' is not carried out: what is too long is refused");
    } else if (truncation != "disabled") {
      fields_.refuse("truncation", "auto or disabled", fields_.get("truncation"));
    }
    if (const JsonValue* include = fields_.get("include", Kind::array)) {
      for (const JsonValue& item : include->items) {
        if (!item.is(Kind::string)) fields_.refuse("include", "strings", &item);
        if (item.text == kLogprobs) {
          logprobs_ = true;
        } else {
          call_->notes.push_back(fmt::format("include {}: this server has nothing of the kind", shown(&item)));
        }
      }
    }
  }

  void read_items() {
    if (const std::optional<std::string> text = fields_.string("instructions")) conversation_.add_instructions(*text);
    if (const std::optional<std::string> id = fields_.string("previous_response_id")) read_previous(*id);
    const JsonValue* input = fields_.get("input");
    if (input == nullptr && call_->history.empty()) fields_.refuse("input", "a string or an array of items", nullptr);
    if (input == nullptr) return;
    if (input->is(Kind::string)) {
      const JsonValue item = object_value({{"role", string_value("user")}, {"content", *input}});
      conversation_.add(item, "input");
      items_.push_back(shown_item(item));
    } else if (input->is(Kind::array)) {
      for (size_t i = 0; i < input->items.size(); ++i) {
        conversation_.add(input->items[i], fmt::format("input[{}]", i));
        items_.push_back(shown_item(input->items[i]));
      }
    } else {
      fields_.refuse("input", "a string or an array of items", input);
    }
  }

  void read_previous(const std::string& id) {
    constexpr const char* kField = "previous_response_id";
    const std::shared_ptr<const StoredResponse> previous = store_.find(id);
    if (!previous) {
      throw bad_request(fmt::format("{}: there is no response '{}' (any more)", kField, shortened(id)), kField,
                        "previous_response_not_found");
    }
    if (previous->running) throw bad_request(fmt::format("{}: '{}' is still in progress", kField, id), kField);
    call_->history = previous->history;
    call_->history.push_back(previous->items);
    for (const auto& items : call_->history) {
      for (const std::string* list : {&items->input, &items->output}) {
        for (const JsonValue& item : parse_json_value(*list, "stored response").items) conversation_.add(item, kField);
      }
    }
  }

  JsonValue chat_request() {
    std::vector<JsonMember> chat;
    const auto add = [&](const char* key, JsonValue value) {
      if (!value.is(Kind::null)) chat.push_back({key, std::move(value)});
    };
    for (const JsonMember& member : root_.members) {
      if (holds(kSame, member.first)) chat.push_back(member);
    }
    add("messages", conversation_.take_messages());
    if (const JsonValue* tools = fields_.get("tools", Kind::array)) add("tools", chat_tools(*tools));
    if (const JsonValue* most = fields_.get("max_output_tokens")) add("max_completion_tokens", *most);
    if (const JsonValue* text = fields_.get("text", Kind::object)) {
      const RequestFields inner(*text, "text");
      inner.check("verbosity", Kind::string);
      add("response_format", chat_format(inner));
    }
    if (const JsonValue* reasoning = fields_.get("reasoning", Kind::object)) {
      const RequestFields inner(*reasoning, "reasoning");
      for (const char* key : {"summary", "generate_summary"}) inner.check(key, Kind::string);
      if (const JsonValue* effort = reasoning->find("effort")) add("reasoning", object_value({{"effort", *effort}}));
    }
    const JsonValue* top = fields_.get("top_logprobs");
    add("logprobs", boolean_value(logprobs_ || (top != nullptr && top->text != "0")));
    return object_value(std::move(chat));
  }

  [[nodiscard]] Json echoed(const char* key, Kind kind, Json otherwise) const {
    const JsonValue* value = fields_.get(key, kind);
    return value == nullptr ? std::move(otherwise) : json_of(*value);
  }

  void write_settings() {
    // The shortest decimal that gives the same float.
    const auto decimal = [](float value) { return std::stod(fmt::format("{}", value)); };
    const GenerationFields& generation = call_->chat->generation;
    Json& made = call_->settings;
    made["background"] = false;
    made["instructions"] = echoed("instructions", Kind::string, nullptr);
    made["max_output_tokens"] = echoed("max_output_tokens", Kind::number, nullptr);
    made["max_tool_calls"] = echoed("max_tool_calls", Kind::number, nullptr);
    made["metadata"] = echoed("metadata", Kind::object, Json::object());
    made["model"] = generation.model;
    made["parallel_tool_calls"] = echoed("parallel_tool_calls", Kind::boolean, true);
    made["previous_response_id"] = echoed("previous_response_id", Kind::string, nullptr);
    made["prompt_cache_key"] = echoed("prompt_cache_key", Kind::string, nullptr);
    made["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
    made["reasoning"].update(echoed("reasoning", Kind::object, Json::object()));
    made["safety_identifier"] = echoed("safety_identifier", Kind::string, nullptr);
    made["service_tier"] = "default";
    made["store"] = call_->store && store_.keeps();
    made["temperature"] = decimal(generation.sampling.temperature);
    made["text"] = {{"format", {{"type", "text"}}}};
    const Json text = echoed("text", Kind::object, Json::object());
    for (const auto& [key, value] : text.items()) {
      if (!value.is_null()) made["text"][key] = value;
    }
    const JsonValue* choice = fields_.get("tool_choice");
    made["tool_choice"] = choice == nullptr ? Json("auto") : json_of(*choice);
    made["tools"] = echoed("tools", Kind::array, Json::array());
    for (Json& tool : made["tools"]) {
      for (const char* key : {"type", "parameters", "strict"}) {
        if (!tool.contains(key)) tool[key] = key == std::string_view("type") ? Json("function") : Json(nullptr);
      }
    }
    made["top_logprobs"] = call_->chat->top_logprobs;
    made["top_p"] = decimal(generation.sampling.top_p);
    made["truncation"] = "disabled";
    made["user"] = echoed("user", Kind::string, nullptr);
  }

  const JsonValue& root_;
  RequestFields fields_;
  const Service& service_;
  ResponsesStore& store_;
  std::shared_ptr<ResponsesCall> call_;
  ConversationBuilder conversation_;
  Json items_ = Json::array();  // of the request, as they are shown
  bool logprobs_ = false;
};

}  // namespace

std::shared_ptr<const ResponsesCall> read_responses_call(const JsonValue& root, const Service& service, ResponsesStore& store) {
  try {
    return Reader(root, service, store).read();
  } catch (...) {
    throw current_error();
  }
}

}  // namespace weft::api
