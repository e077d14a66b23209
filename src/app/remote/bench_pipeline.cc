// weft bench pipeline.
#include "app/bench_pipeline.h"

#include "engine/remote/pipeline_speed.h"

namespace weft {

bench::Record measure_pipeline(const ModelOptions& model, int64_t stages, int64_t requests, int64_t tokens, int repeats) {
  return bench::bench_pipeline({model, "/proc/self/exe", stages, requests, tokens, repeats});
}

}  // namespace weft
