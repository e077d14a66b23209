// Draws on the coordinator, from logits that the last stage gives back in place of tokens (--pp-sample-at coordinator).
//
//     const StageStep asked = without_draws(step);    // what the stages are told
//     sampler.draw(step, starts, results);            // results of `asked` become those of `step`
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "ops/context.h"
#include "parallel/communicator.h"
#include "pipeline/stage_runner.h"

namespace weft {

// The same step, in which the last row's logits come back where a token was to be drawn.
[[nodiscard]] StageStep without_draws(const StageStep& step);

class CoordinatorSampler {
 public:
  // `backend`: that of the stages, for equal bits; cuda is none of a coordinator.
  CoordinatorSampler(ops::Backend backend, int threads, int64_t vocab);

  // `starts`: tokens consumed before each entry's rows. Waits for masks. Throws bad_input for logits of another shape and for a
  // request that is none, what a mask's future throws, and as ops::sample(). One thread at a time.
  void draw(const StageStep& step, std::span<const int64_t> starts, std::vector<RowsResult>& results);

 private:
  WorkerPool pool_;
  SingleRank ranks_;
  ops::Context context_;
  int64_t vocab_;
};

}  // namespace weft
