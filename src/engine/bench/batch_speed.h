// How many tokens a second a model decodes for several requests side by side, through the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/bench/record.h"
#include "engine/executor_loader.h"

namespace weft::bench {

struct BatchOptions {
  ModelOptions model;            // one stage, on the CPU
  std::vector<int64_t> batches;  // requests that decode side by side
  int64_t tokens = 16;           // that each of them decodes in a repeat, >= 1
  int repeats = 3;
};

// Tokens per second over all requests of a batch, from the step behind their first tokens to the last one. Prompts are
// pseudo-random and tokens are sampled at temperature 1, so that routing differs between requests; nothing is kept in the
// prefix store. Limit: what is slower of the weight bytes that a step has to read (of routed experts those that the requests of
// the batch were sent to, counted in a run of the same draws) at the read bandwidth that was measured beside the batch, and of
// its operations at the peak arithmetic.
[[nodiscard]] Record bench_batch(const BatchOptions& options);

// The same of any executor, without a limit: one value for each repeat.
[[nodiscard]] Samples decode_rates(Executor& executor, int64_t requests, int64_t tokens, int repeats);

}  // namespace weft::bench
