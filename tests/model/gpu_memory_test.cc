#include "model/gpu_memory.h"

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/families/kimi_config.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

// All draws of a step are made in one call, which takes a copy of their logits.
TEST(GpuMemory, PlansTheDrawsOfAStep) {
  const Checkpoint checkpoint(fixture("tiny-k3-8l"));
  auto config = dynamic_cast<const KimiConfig&>(checkpoint.config());
  config.vocab_size = 163840;
  const auto floats = [&](int64_t rows) { return rows * config.vocab_size * static_cast<int64_t>(sizeof(float)); };
  EXPECT_GE(gpu_workspace(config, checkpoint.all_layers(), kPlannedLogitsRows).operators, floats(kPlannedLogitsRows));
  // Rows without logits need no more of it.
  EXPECT_LT(gpu_workspace(config, checkpoint.all_layers(), 2 * kPlannedLogitsRows).operators, floats(3 * kPlannedLogitsRows));
}

}  // namespace
}  // namespace weft
