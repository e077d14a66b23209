// `weft eval ppl`: how well a model predicts a text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "pipeline/executor.h"

namespace weft {

struct PerplexityOptions {
  int64_t window = 0;                                            // tokens, >= 2
  int64_t chunk = 64;                                            // rows of one step, >= 1: all of them bring logits
  const std::atomic<bool>* cancelled = nullptr;                  // looked at between steps
  std::function<void(int64_t done, int64_t total)> on_progress;  // tokens; may be empty
};

struct PerplexityReport {
  int64_t tokens = 0;                // read
  int64_t scored = 0;                // tokens with a predecessor in their window
  int64_t windows = 0;               // begun
  std::optional<double> nats;        // mean of -ln p over the scored tokens, raw logits, summed in double; absent when none was
  std::optional<double> perplexity;  // e^nats
  bool interrupted = false;          // the numbers are of the tokens read so far
};

// The ids in windows that do not overlap; each starts from an empty state, so its first token is not scored. Throws bad_input
// for fewer than two ids.
[[nodiscard]] PerplexityReport measure_perplexity(Executor& executor, std::span<const int32_t> ids,
                                                  const PerplexityOptions& options);

}  // namespace weft
