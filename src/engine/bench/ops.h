// Speed of the operators at K3's sizes, on the cases that the operator suite tests.
#pragma once

#include <string>

#include "engine/bench/record.h"
#include "ops/context.h"

namespace weft::bench {

struct OpsBench {
  int threads = 1;
  int repeats = 5;
  ops::Profile profile = ops::Profile::bf16;
  std::string op;  // "linear"; empty: all
  bool gpu = false;
};

// Each case in GB/s or GFLOP/s, whichever limit is the nearer one for its bytes and operations. Calls take turns over copies of
// the operands that no cache holds together, so that everything comes from memory. A case that is bound by memory and fits the
// last cache twice is timed on one copy as well ("GB_per_s_from_cache"): what its arithmetic allows. On a GPU: bench_gpu_ops
// (gpu.h). Throws bad_input for an unknown operator.
[[nodiscard]] Record bench_ops(const OpsBench& options);

}  // namespace weft::bench
