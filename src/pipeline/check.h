// `weft check`: does this checkpoint hold a working model?
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/executor.h"

namespace weft {

struct CheckOptions {
  int64_t tokens = 65;  // length of the probe: ids spread over the vocabulary by a fixed rule
  int64_t chunk = 512;
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;  // looked at layer by layer; once set, check_model throws unavailable
};

struct CheckLine {
  std::string what;  // "finite logits"
  bool passed = false;
  std::string found;  // measured values, or where it failed
};

// Runs a probe and looks at what comes out: the pass itself (its error is a line, not thrown), logits of the right shape, every
// layer's output finite (the first that is not is named by layer and position), logits not all equal, a changed last token
// changes no earlier row (causality, bit for bit), and that other chunks than `chunk` change no row (bit for bit).
[[nodiscard]] std::vector<CheckLine> check_model(Executor& executor, const CheckOptions& options);

}  // namespace weft
