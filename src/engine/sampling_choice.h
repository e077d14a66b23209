// How tokens are drawn, as it was asked for: each value by the first of request, generation_config.json, built-in that gives it
// (prompt_and_api.md 7.1; the command line counts as the request).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "ops/sample.h"
#include "text/json_value.h"

namespace weft {

struct SamplingChoice {
  std::optional<double> temperature;         // 0..2; 0: greedy
  std::optional<double> top_p;               // 0..1; 0 keeps the single most likely token
  std::optional<int64_t> top_k;              // 0 and -1: off
  std::optional<double> min_p;               // 0..1
  std::optional<double> repetition_penalty;  // > 0, over prompt and generated tokens
  std::optional<double> frequency_penalty;   // -2..2, over generated tokens
  std::optional<double> presence_penalty;    // likewise
  std::optional<uint64_t> seed;

  // The fields of the same names of a JSON object: a request or generation_config.json; null counts as absent. Throws
  // Error(kind) naming `place` and field for a wrong type.
  static SamplingChoice read(const JsonValue& object, std::string_view place, ErrorKind kind = ErrorKind::bad_input);

  // This choice, with what it leaves open taken from `next`.
  [[nodiscard]] SamplingChoice or_else(const SamplingChoice& next) const;

  // With the built-in values (temperature 1, top_p 1, all else neutral) for what is still open, and a random seed below 2^53
  // (so that JSON readers keep it) when there is none. Throws bad_input naming field and range (6.2).
  [[nodiscard]] ops::SamplingParams resolve() const;
};

// The choice in generation_config.json of a checkpoint folder; nothing chosen when there is no such file. `do_sample: false`
// stands for temperature 0. Throws bad_checkpoint.
[[nodiscard]] SamplingChoice read_generation_config(const std::filesystem::path& folder);

}  // namespace weft
