// The fields of a request that decide how tokens are drawn and when an answer ends (prompt_and_api.md 6.2, 7.1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/token_end.h"
#include "ops/sample.h"
#include "server/api/service.h"

namespace weft::api {

struct GenerationFields {
  std::string model;  // as asked for
  ops::SamplingParams sampling;
  std::optional<int64_t> max_tokens;
  std::vector<ops::LogitBias> bias;  // ascending
  std::vector<std::string> stop;
  TokenEndOptions end;
  int64_t choices = 1;  // `n`
  bool stream = false;
  bool include_usage = false;

  // The same draws for every choice would be one answer `n` times.
  [[nodiscard]] ops::SamplingParams sampling_of(int64_t choice) const;
};

// Throws ApiError naming the field.
[[nodiscard]] GenerationFields read_generation(const JsonValue& root, const Service& service);

}  // namespace weft::api
