// A conversation. The engine keeps the state at the end of each answer, so a further answer computes what closes the last one,
// the new messages and the generation prompt (as long as the store has room for that state). Where a format renders the history
// otherwise once more follows (Qwen leaves out reasoning before the last question), all behind the change is computed anew.
//
//     ChatSession session(model, engine, parse_chat_request(json));
//     TurnResult first = session.answer(options);
//     session.add(message);                            // a user message, or results of the tools called
//     TurnResult second = session.answer(options);
//
// For well-formed answers the ids fed are those of the whole history rendered anew (prompt_and_api.md 3.11). tool_choice and
// response_format of the request write a message behind each round of new messages.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/turn.h"

namespace weft {

struct AnswerOptions {
  TurnOptions turn;
  const std::atomic<bool>* cancelled = nullptr;                // looked at between steps
  std::function<void(const ChatEvent&)> on_event;              // may be empty; what it throws ends the answer
  std::function<void(int64_t done, int64_t total)> on_prompt;  // prompt tokens in the state; may be empty
};

class ChatSession {
 public:
  ChatSession(const Model& model, Engine& engine, ChatRequest request);

  // A message for the next answer. Its place in the conversation is set here.
  void add(ChatMessage message);
  void add_user(std::string text);

  // Keeps the first `count` messages: forgets those behind them, to which there is no answer yet.
  void take_back(size_t count);

  // The model's answer to what was added. It becomes part of the history, a cut one too. What cannot be read or has no room
  // throws bad_input before anything is computed. When it throws, the conversation is as it was before.
  TurnResult answer(const AnswerOptions& options);

  [[nodiscard]] const std::vector<ChatMessage>& messages() const { return request_.messages; }
  // All ids of the conversation in order.
  [[nodiscard]] const std::vector<TokenId>& ids() const { return ids_; }

 private:
  // The ids of the conversation up to the next answer.
  [[nodiscard]] std::vector<TokenId> prompt_ids(const ChatPrompt& prompt) const;
  void drive(RequestId id, Turn& turn, const AnswerOptions& options);
  void keep(const TurnResult& result);

  const Model& model_;
  Engine& engine_;
  ChatRequest request_;
  size_t answered_ = 0;  // messages that ids_ holds
  std::vector<TokenId> ids_;
};

}  // namespace weft
