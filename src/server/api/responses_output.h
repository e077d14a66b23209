// What a model wrote as output items of a response, and the events that tell of them while they grow (prompt_and_api.md 6.10).
//
//     ResponseOutput output([](std::string_view type, const Json& fields) { send(type, fields); });
//     for (ChatEvent& event : turn.take_events()) output.add(event);
//     output.close(cut ? "incomplete" : "completed");
//     body["output"] = output.items();
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "text/output_parser.h"

namespace weft::api {

class ResponseOutput {
 public:
  using Emit = std::function<void(std::string_view type, const Json& fields)>;

  // `emit` is told of each event; it may be empty.
  explicit ResponseOutput(Emit emit) : emit_(std::move(emit)) {}

  // Log probabilities of the content that add() gets next, or got last: an array of tokens.
  void add_logprobs(const Json& tokens);
  void add(const ChatEvent& event);
  // Ends the item that is open, if one is; a call that the model did not end is incomplete whatever `status` says.
  void close(std::string_view status);

  // An array of the items that have ended, in order.
  [[nodiscard]] const Json& items() const { return items_; }

 private:
  enum class Kind : uint8_t { reasoning, message, call };
  struct Item {
    Kind kind;
    std::string id;
    std::string text;  // of a call: its arguments
    std::string name;
    std::string call_id;
    Json logprobs = Json::array();
    bool whole = false;      // a call whose end has come
    bool withdrawn = false;  // reasoning that turned out to be the answer
  };

  void open(Item item);
  void add_text(Kind kind, const std::string& text);
  void emit(std::string_view type, Json fields);
  [[nodiscard]] Json item_json(std::string_view status) const;
  [[nodiscard]] Json part_json() const;

  Emit emit_;
  Json items_ = Json::array();
  std::optional<Item> open_;
  Json waiting_ = Json::array();  // log probabilities without a delta yet
};

}  // namespace weft::api
