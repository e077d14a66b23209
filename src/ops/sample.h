// Sampling, the last operator of the last stage (prompt_and_api spec 7.2).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/context.h"
#include "tensor/tensor.h"

namespace weft::ops {

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy, lowest id on ties
  int64_t top_k = 0;         // 0: off
  float top_p = 1.0F;        // 0: the most likely id only
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  uint64_t seed = 0;

  // Throws bad_input naming the field, the range wanted and the value found.
  void validate() const;
};

// Added to the logit of an id.
struct LogitBias {
  int32_t id = 0;
  float bias = 0.0F;  // -100..100

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// One row to sample. The draw is keyed by (seed, position), so the same request gives the same ids in any batch.
struct SampleRow {
  SamplingParams params;
  int64_t position = 0;                      // position of the token to be drawn in its sequence
  std::span<const int32_t> history;          // generated ids so far, for the penalties
  std::span<const int32_t> never_penalised;  // ids exempt from penalties (control tokens), ascending
  std::span<const uint32_t> allowed;         // bit mask of allowed ids, ceil(V/32) words; empty: all
  std::span<const int32_t> prompt = {};      // ids of the prompt; only the repetition penalty counts them
  std::span<const LogitBias> bias = {};      // each id once, ascending
};

struct Sampled {
  int32_t id = 0;
  float logprob = 0.0F;  // natural log of the id's probability under the raw logits (temperature 1)
};

// logits [R, V] float32; rows, out: R entries. Order of operations of 7.2: bias, penalties, mask of never-valid ids and of the
// grammar, temperature, top-k, top-p (of the probabilities that top-k left), min-p, draw. Where candidates are sorted, equal
// probabilities are sorted by id. The draw inverts the cumulative sum over the remaining ids in ascending order at
// uniform_draw(seed, position) of philox.h. A row whose logits are not finite, or that has no allowed id, is an error naming
// it.
//
// On a GPU `out` lies in its memory, and such a row has one of the ids below instead, which check_sampled() turns into the
// error once the host has the results.
void sample(Context& context, TensorView logits, std::span<const SampleRow> rows, std::span<Sampled> out);

// The `count` most likely ids of a row of logits [V] in host memory with their log probabilities, most likely first (equal ones
// by id). The values are those that sample() gives for the same ids.
[[nodiscard]] std::vector<Sampled> most_likely(std::span<const float> logits, int64_t count);
// Log probability of one id of such a row.
[[nodiscard]] float log_probability(std::span<const float> logits, int32_t id);

inline constexpr int32_t kNotFinite = -1;
inline constexpr int32_t kPenaltyOverflow = -2;
inline constexpr int32_t kNoneAllowed = -3;
void check_sampled(const Sampled& sampled, const SampleRow& row);

}  // namespace weft::ops
