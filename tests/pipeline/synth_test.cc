// A random checkpoint answers with finite logits that depend on the prompt.
#include "model/synth.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/models.h"
#include "support/small_synth.h"

namespace weft {
namespace {

using testing_support::TemporaryFolder;

void expect_logits_of_a_model(const std::filesystem::path& dir) {
  const auto executor = testing_support::open_executor(dir);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 70; ++i) ids.push_back(i * 37 % 512);
  const std::vector<float> logits = testing_support::logits_of(*executor, ids, 70);
  ASSERT_EQ(logits.size(), 70U * 512U);
  double squares = 0.0;
  for (const float value : logits) {
    ASSERT_TRUE(std::isfinite(value));
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(logits.size()));
  EXPECT_GT(deviation, 0.1);
  EXPECT_LT(deviation, 10.0);
}

TEST(Synth, LogitsAreFinite) {
  const TemporaryFolder dir;
  SynthOptions options = testing_support::small_synth(dir.path() / "model");
  options.layers = 6;
  (void)synthesize(options);
  expect_logits_of_a_model(options.out);
}

TEST(Synth, LogitsOfQwen3NextAreFinite) {
  const TemporaryFolder dir;
  SynthOptions options = testing_support::small_qwen(dir.path() / "model");
  (void)synthesize(options);
  expect_logits_of_a_model(options.out);
}

}  // namespace
}  // namespace weft
