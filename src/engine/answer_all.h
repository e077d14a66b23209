// Answers to many independent requests, side by side as the engine allows.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/turn.h"

namespace weft {

struct AnswerAllOptions {
  TurnOptions turn;
  std::vector<const grammar::AnswerRules*> rules;  // of each prompt, in place of the turn's; null: its answer may have any form
  const std::atomic<bool>* cancelled = nullptr;    // looked at between steps; requests not yet answered end as cancelled
  std::function<void(int64_t done)> on_progress;   // requests answered; may be empty
};

// In the order of the prompts. Throws what made the first of them fail.
[[nodiscard]] std::vector<TurnResult> answer_all(const Model& model, Engine& engine, std::span<const ChatPrompt> prompts,
                                                 const AnswerAllOptions& options);

}  // namespace weft
