// weft bench pipeline, which a build without gRPC refuses.
#pragma once

#include <cstdint>

#include "engine/bench/record.h"
#include "engine/executor_loader.h"

namespace weft {

[[nodiscard]] bench::Record measure_pipeline(const ModelOptions& model, int64_t stages, int64_t requests, int64_t tokens,
                                             int repeats);

}  // namespace weft
