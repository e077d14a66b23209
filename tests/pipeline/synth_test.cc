// A random checkpoint answers with finite logits that depend on the prompt.
#include "model/synth.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/models.h"

namespace weft {
namespace {

using testing_support::TemporaryFolder;

TEST(Synth, LogitsAreFinite) {
  const TemporaryFolder dir;
  SynthOptions options;
  options.out = dir.path() / "model";
  options.layers = 6;
  options.set = {"hidden_size=64",
                 "intermediate_size=96",
                 "num_attention_heads=2",
                 "num_key_value_heads=2",
                 "q_lora_rank=32",
                 "kv_lora_rank=32",
                 "qk_nope_head_dim=16",
                 "qk_rope_head_dim=8",
                 "v_head_dim=16",
                 "num_experts=8",
                 "num_experts_per_token=2",
                 "moe_intermediate_size=32",
                 "vocab_size=512",
                 "attn_res_block_size=2",
                 "routed_expert_hidden_size=32",
                 "num_shared_experts=1",
                 "max_position_embeddings=4096",
                 "linear_attn_config.num_heads=2",
                 "linear_attn_config.head_dim=32"};
  (void)synthesize(options);
  const auto executor = testing_support::open_executor(options.out);
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

}  // namespace
}  // namespace weft
