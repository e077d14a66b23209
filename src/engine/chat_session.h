// A conversation on one sequence. Nothing that the sequence has consumed is ever computed again: a further answer feeds what
// closes the last one, the new messages and the generation prompt.
//
//     ChatSession session(model, parse_chat_request(json));
//     TurnResult first = session.answer(options, print);
//     session.add(message);                            // a user message, or results of the tools called
//     TurnResult second = session.answer(options, print);
//
// For well-formed answers the ids fed are those of the whole history rendered anew (prompt_and_api.md 3.11). tool_choice and
// response_format of the request write a message behind each round of new messages.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/owned_sequence.h"
#include "engine/turn.h"

namespace weft {

struct AnswerOptions {
  TurnOptions turn;
  int64_t prefill_chunk = 512;                                 // rows of one step, >= 1
  const std::atomic<bool>* cancelled = nullptr;                // looked at between steps
  std::function<void(const ChatEvent&)> on_event;              // may be empty; what it throws ends the answer
  std::function<void(int64_t done, int64_t total)> on_prompt;  // prompt tokens computed; may be empty
};

struct TurnResult {
  ChatAnswer answer;
  TurnEnd end = TurnEnd::stop;
  TurnStatistics statistics;
  ParserCounters counters;
  ops::SamplingParams sampling;
  std::vector<TokenId> ids;        // generated
  std::vector<std::string> notes;  // what was not done exactly as asked
};

class ChatSession {
 public:
  ChatSession(Model& model, ChatRequest request);

  // A message for the next answer. Its place in the conversation is set here.
  void add(ChatMessage message);
  void add_user(std::string text);

  // Keeps the first `count` messages: forgets those behind them, to which there is no answer yet.
  void take_back(size_t count);

  // The model's answer to what was added. It becomes part of the history, a cut one too. What cannot be read or has no room
  // throws bad_input before anything is computed; once it is taken back, the session goes on. Throws what steps throw; the
  // session is not usable then.
  TurnResult answer(const AnswerOptions& options);

  [[nodiscard]] bool usable() const { return !failed_; }

  [[nodiscard]] const std::vector<ChatMessage>& messages() const { return request_.messages; }
  // All ids of the conversation in order: consumed by the sequence, then those that wait for the next answer.
  [[nodiscard]] const std::vector<TokenId>& ids() const { return ids_; }
  [[nodiscard]] TokenCount consumed() const { return model_.executor().consumed(sequence_.id()); }

 private:
  // The ids between what the conversation has so far and the next answer.
  [[nodiscard]] std::vector<TokenId> new_ids(const ChatPrompt& prompt) const;
  void drive(Turn& turn, const AnswerOptions& options, AnswerBuilder& builder);
  void keep(const TurnResult& result);

  Model& model_;
  ChatRequest request_;
  size_t answered_ = 0;  // messages that the state (with what waits) holds
  OwnedSequence sequence_;
  std::vector<TokenId> ids_;
  bool failed_ = false;
};

}  // namespace weft
