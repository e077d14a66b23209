// Answers to many independent requests, several in each step. The ids of an answer are those of a run on its own.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "engine/chat_session.h"

namespace weft {

struct AnswerAllOptions {
  TurnOptions turn;
  int64_t prefill_chunk = 512;                    // prompt rows of one step over all sequences, >= 1
  int64_t concurrent = 16;                        // sequences of one step, >= 1
  const std::atomic<bool>* cancelled = nullptr;   // looked at between steps; requests not yet answered end as cancelled
  std::function<void(int64_t done)> on_progress;  // requests answered; may be empty
};

// In the order of the prompts.
[[nodiscard]] std::vector<TurnResult> answer_all(Model& model, std::span<const ChatPrompt> prompts,
                                                 const AnswerAllOptions& options);

}  // namespace weft
