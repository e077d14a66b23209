// How fast a model decodes and reads a prompt, beside what the machine's memory and arithmetic allow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/bench/record.h"
#include "engine/executor_loader.h"

namespace weft::bench {

// Tokens per second of one sequence that decodes `tokens` ids (pseudo-random, so that the routing varies; sampled greedily as
// in an answer), with every page warm. Limit: the read bandwidth of as many threads over the weight bytes of a token; of a GPU,
// its copy bandwidth (gpu.h).
[[nodiscard]] Record bench_decode(const ModelOptions& options, int64_t tokens, int repeats);

// GFLOP/s of a prompt of `tokens` pseudo-random ids in one step (prefill_operations), every page warm. Limit: the peak
// arithmetic of as many threads. On a GPU: unsupported.
[[nodiscard]] Record bench_prefill(const ModelOptions& options, int64_t tokens, int repeats);

// Seconds from the start of a process that answers a short prompt with one token to its end, warm page cache: an upper bound of
// the time to the first token. `command`: program and arguments. Throws unavailable when it fails.
[[nodiscard]] Figure first_token(const std::vector<std::string>& command, int repeats);

}  // namespace weft::bench
