#include "formats/quantization.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"

namespace weft {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& body) {
  const auto failure = guard(body);
  return failure ? failure->message : "no error";
}

TEST(Quantization, KindIsWhatTheConfigurationStates) {
  const auto kind = [](const char* json) { return quantization_kind(Json::parse(json), "config.json"); };
  EXPECT_EQ(kind("{}"), QuantizationKind::none);
  EXPECT_EQ(kind(R"({"quantization": null, "quantization_config": null})"), QuantizationKind::none);
  EXPECT_EQ(kind(R"({"quantization_config": {"quant_method": "fp8"}})"), QuantizationKind::fp8);
  EXPECT_EQ(kind(R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})"), QuantizationKind::fp8);
  EXPECT_EQ(kind(R"({"quantization_config": {"quant_method": "compressed-tensors"}})"), QuantizationKind::compressed_tensors);
  EXPECT_EQ(kind(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})"),
            QuantizationKind::compressed_tensors);  // refused by its reader
  EXPECT_EQ(kind(R"({"quantization": {"bits": 4, "group_size": 64}})"), QuantizationKind::mlx);
  EXPECT_EQ(kind(R"({"quantization_config": {"bits": 4, "group_size": 64}})"), QuantizationKind::mlx);
  // What the original was stays in text_config of a conversion.
  EXPECT_EQ(kind(R"({"quantization": {"bits": 4, "group_size": 64}, "quantization_config": {"bits": 4, "group_size": 64},
                     "text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}})"),
            QuantizationKind::mlx);
}

TEST(Quantization, Fp8SkipsModulesByWholeComponents) {
  const Fp8Rules rules(Json::parse(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
    "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.linear_attn"]}})"),
                       "config.json");
  EXPECT_TRUE(rules.skips("lm_head"));
  EXPECT_TRUE(rules.skips("model.layers.0.mlp.gate"));
  EXPECT_FALSE(rules.skips("model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(rules.skips("model.layers.1.linear_attn.in_proj_ba"));
  EXPECT_FALSE(rules.skips("model.layers.10.linear_attn.in_proj_ba"));
}

TEST(Quantization, Fp8IsRefusedUnlessItIsE4m3In128Blocks) {
  const auto message = [](const char* key, const char* value) {
    Json config = Json::parse(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
    config["quantization_config"][key] = Json::parse(value);
    return refusal([&] { (void)Fp8Rules(config, "config.json"); });
  };
  EXPECT_EQ(message("fmt", "\"e4m3\""), "no error");
  EXPECT_THAT(message("fmt", "\"e5m2\""), HasSubstr("quantization_config.fmt: wanted \"e4m3\", found \"e5m2\""));
  EXPECT_THAT(message("weight_block_size", "[128, 64]"), HasSubstr("weight_block_size: wanted [128,128], found [128,64]"));
  EXPECT_THAT(message("weight_block_size", "null"), HasSubstr("weight_block_size: wanted [128,128], found nothing"));
  EXPECT_THAT(message("activation_scheme", "\"static\""), HasSubstr("activation_scheme: wanted \"dynamic\", found \"static\""));
  EXPECT_THAT(message("modules_to_not_convert", "[1]"),
              HasSubstr("modules_to_not_convert: wanted a list of strings, found [1]"));
}

TEST(Quantization, MlxRulesOfModules) {
  const MlxRules rules(Json::parse(R"({"quantization": {"group_size": 64, "bits": 4,
    "model.layers.0.mlp.gate": {"group_size": 32, "bits": 8},
    "model.layers.0.mlp.switch_mlp.up_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "lm_head": false, "model.embed_tokens": true}})"),
                       "config.json");
  using Mode = MlxRule::Mode;
  EXPECT_EQ(rules.of("model.layers.1.mlp.gate"), (MlxRule{Mode::affine, 4, 64}));
  EXPECT_EQ(rules.of("model.layers.0.mlp.gate"), (MlxRule{Mode::affine, 8, 32}));
  EXPECT_EQ(rules.of("model.layers.0.mlp.switch_mlp.up_proj"), (MlxRule{Mode::mxfp4, 4, 32}));
  EXPECT_EQ(rules.of("model.embed_tokens"), (MlxRule{Mode::affine, 4, 64}));
  EXPECT_FALSE(rules.of("lm_head").has_value());
}

TEST(Quantization, MlxIsRefusedOutsideItsWidths) {
  const auto message = [](const char* json) { return refusal([&] { (void)MlxRules(Json::parse(json), "config.json"); }); };
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      EXPECT_EQ(message(fmt::format(R"({{"quantization": {{"bits": {}, "group_size": {}}}}})", bits, group).c_str()),
                "no error");
    }
  }
  EXPECT_THAT(message(R"({"quantization": {"bits": 7, "group_size": 64}})"),
              HasSubstr("quantization: wanted affine codes of 2"));
  EXPECT_THAT(message(R"({"quantization": {"bits": 4, "group_size": 16}})"),
              HasSubstr("quantization: wanted affine codes of 2"));
  EXPECT_THAT(message(R"({"quantization": {"bits": 4}})"),
              HasSubstr("quantization.group_size: wanted an integer, found nothing"));
  EXPECT_THAT(
      message(R"({"quantization": {"bits": 4, "group_size": 64, "a": {"bits": 4, "group_size": 64, "mode": "mxfp4"}}})"),
      HasSubstr("quantization.a: wanted affine codes"));
  EXPECT_THAT(message(R"({"quantization": {"bits": 8, "group_size": 32, "mode": "mxfp8"}})"),
              HasSubstr("quantization.mode: wanted \"affine\" or \"mxfp4\", found \"mxfp8\""));
  EXPECT_THAT(message(R"({"quantization": {"bits": 4, "group_size": 64, "a": 3}})"),
              HasSubstr("quantization.a: wanted a rule for a module"));
}

TEST(Quantization, FindsTheFirstE4m3Nan) {
  std::vector<std::byte> codes(10000);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i % 256 % 127 + (i % 2 == 0 ? 128 : 0));
  EXPECT_EQ(find_e4m3_nan(codes), std::nullopt);
  EXPECT_EQ(find_e4m3_nan({}), std::nullopt);
  for (const size_t at : {size_t{9999}, size_t{4096}, size_t{4095}, size_t{0}}) {
    codes[at] = std::byte{at % 2 == 0 ? uint8_t{0x7F} : uint8_t{0xFF}};
    EXPECT_EQ(find_e4m3_nan(codes), at);
  }
}

}  // namespace
}  // namespace weft
