// A request to /v1/chat/completions, read and rendered: what is to be generated, under which rules (prompt_and_api.md 6.2).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/answer_rules.h"
#include "engine/turn.h"
#include "server/api/generation_fields.h"
#include "server/api/run.h"
#include "text/chat.h"

namespace weft::api {

struct ChatCall {
  GenerationFields generation;
  ChatPrompt prompt;
  std::optional<grammar::AnswerRules> rules;
  int64_t max_calls = 0;  // 0: any number
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool include_reasoning = true;
  std::vector<std::string> notes;  // what is not done exactly as asked

  [[nodiscard]] TurnOptions turn_options(int64_t choice) const;  // refers to this call
};

// Throws ApiError, or Error for what the prompt's reader refuses (error_of).
[[nodiscard]] std::shared_ptr<const ChatCall> read_chat_call(const JsonValue& root, const Service& service);
// The prompt alone, for /apply-template and /tokenize: fields that decide how to draw are not looked at.
[[nodiscard]] ChatPrompt render_chat(const JsonValue& root, const Service& service);

// Starts the choices of `call` in `turns`, one for each choice.
void start_turns(Run& run, const ChatCall& call, const std::vector<std::shared_ptr<Turn>>& turns);
[[nodiscard]] std::vector<std::shared_ptr<Turn>> make_turns(const Service& service, const ChatCall& call);

}  // namespace weft::api
