// The families by name: K1, K2 and Q1 of distributed.md 11.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/family_names.h"
#include "model/model_config.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const Json& config) {
  try {
    (void)parse_model_config(config, "config.json");
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Families, K1AndQ1SortedByName) {
  EXPECT_THAT(family_names(), ElementsAre("kimi_k3", "kimi_linear", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
                                          "qwen3_5_text", "qwen3_next"));
}

// What is wrong with a configuration of nothing but its type is something else, in the keys of that family.
TEST(Families, K2ModelTypeResolves) {
  for (const std::string& name : family_names()) {
    EXPECT_THAT(std::string(kSupportedModels), HasSubstr('"' + name + '"'));
    EXPECT_THAT(refusal({{"model_type", name}}), AllOf(Not("accepted"), Not(HasSubstr("model_type")))) << name;
  }
  const std::shared_ptr<const ModelConfig> k3 =
      parse_model_config(read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"), "config.json");
  EXPECT_EQ(k3->model_type, "kimi_k3");
  EXPECT_EQ(k3->mixer_name(LayerIndex(0)), "KDA");
}

TEST(Families, OthersAreRefusedWithTheNamesOfThese) {
  EXPECT_EQ(std::ranges::count(kSupportedModels, '"'), 2 * std::ssize(family_names()));
  for (const Json& config : {Json{{"model_type", "llama"}}, Json{{"model_type", ""}}, Json{{"model_type", "Kimi_K3"}},
                             Json{{"model_type", 3}}, Json::object()})
    EXPECT_THAT(refusal(config), AllOf(HasSubstr("model_type"), HasSubstr("\"qwen3_next\""))) << config.dump();
}

}  // namespace
}  // namespace weft
