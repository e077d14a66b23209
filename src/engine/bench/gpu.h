// Speed on the first GPU, beside the rate at which it copies within its own memory.
#pragma once

#include <string>
#include <vector>

#include "engine/bench/record.h"
#include "ops/context.h"
#include "ops/suite/suite.h"

namespace weft::bench {

struct GpuLimit {
  std::string gpu;  // its name
  Figure copies;    // GB/s of copies within its memory; what is read and what is written both count
};
// Takes 4 GiB of the GPU, and gives them back. Throws unavailable without a GPU.
[[nodiscard]] GpuLimit measure_gpu(int repeats);

// Each case in GB/s of the bytes that it must move. Calls are given one behind another, several to a measurement, on copies of
// the operands that no cache holds together. Tables that the case has on the host are sent with each call, as a step does
// once for all its operators.
[[nodiscard]] Record bench_gpu_ops(const std::vector<ops::CaseSpec>& specs, ops::Profile profile, int repeats);

}  // namespace weft::bench
