// Items of /v1/responses as messages of a chat: what a client sends, and what earlier responses held (prompt_and_api.md 6.10).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/json_value.h"

namespace weft::api {

// Values of requests that are put together here.
[[nodiscard]] JsonValue string_value(std::string text);
[[nodiscard]] JsonValue array_value(std::vector<JsonValue> items);
[[nodiscard]] JsonValue object_value(std::vector<JsonMember> members);
// For an answer: numbers become doubles. Throws Error(bad_input) for one that no double holds.
[[nodiscard]] Json json_of(const JsonValue& value);

// Puts items together to the messages of a chat request. An assistant's turn is one message: the reasoning before it, its
// text, its calls. Ids and statuses of items are not looked at.
class ConversationBuilder {
 public:
  // `where` names the item in errors: "input[3]". Throws ApiError for items and parts of other types than text, calls, results
  // and reasoning.
  void add(const JsonValue& item, const std::string& where);
  // A message of the system.
  void add_instructions(const std::string& text);

  [[nodiscard]] JsonValue take_messages();
  // For "messages[2].tool_call_id" of the chat request: "input[5].call_id".
  [[nodiscard]] std::string place_of(std::string_view field) const;

 private:
  struct Message {
    std::string role;
    std::string where;
    JsonValue content;  // null: none
    std::string reasoning;
    std::vector<JsonValue> calls;
    std::string call_id;  // of a result
    std::string name;     // of a result's function
  };

  void add_message(const JsonValue& item, const std::string& where);
  void add_reasoning(const JsonValue& item, const std::string& where);
  void add_call(const JsonValue& item, const std::string& where);
  void add_result(const JsonValue& item, const std::string& where);
  // The turn of the assistant that the last items belong to, or a new one.
  [[nodiscard]] Message& turn(const std::string& where, bool fresh);

  std::vector<Message> messages_;
  std::vector<std::string> places_;  // of the messages that were taken
};

// An item that ConversationBuilder has taken, as answers show it: with an id, a status and parts instead of a string.
[[nodiscard]] Json shown_item(const JsonValue& item);

}  // namespace weft::api
