// How far a run is from a reference run of the same model and tokens: the gate that a back end or a profile has to pass
// (docs/compare.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "pipeline/trace.h"

namespace weft {

// Limits of the gate, for profile bf16 against a float32 reference.
inline constexpr double kMaxL2 = 1e-2;          // ||a - b|| / ||b|| over all tokens of an output; of combining weights likewise
inline constexpr double kMaxMeanAbs = 5e-3;     // |mean|a| / mean|b| - 1|
inline constexpr double kMaxFlipMargin = 1e-2;  // of selection scores, which lie within about one of each other

// One output of the run (a) against the reference's (b).
struct OutputDifference {
  std::string name;  // "embedding", "layer 3", "logits"
  double l2 = 0.0;
  double mean_abs = 0.0;            // mean|a| / mean|b| - 1
  std::optional<double> router_l2;  // of the combining weights, over the tokens for which both routers chose the same experts

  [[nodiscard]] bool passed() const;  // false for values that are not numbers
};

// A token for which the run's router chose other experts than the reference's.
struct Flip {
  LayerIndex layer;
  int64_t token = 0;
  std::vector<int32_t> chosen;      // by the run and not by the reference
  std::vector<int32_t> not_chosen;  // by the reference and not by the run
  float margin = 0.0F;              // the reference's: last chosen selection score minus the best not chosen
  float own_margin = 0.0F;          // the run's

  [[nodiscard]] bool passed() const { return margin <= static_cast<float>(kMaxFlipMargin); }
};

struct Comparison {
  int64_t tokens = 0;
  std::vector<OutputDifference> outputs;  // the embedding, every layer, the logits
  std::vector<Flip> flips;                // by layer and token

  [[nodiscard]] bool passed() const;
  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// Both are of one model and the same tokens; otherwise bad_input.
[[nodiscard]] Comparison compare_traces(const Trace& run, const Trace& reference);

}  // namespace weft
