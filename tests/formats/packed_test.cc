#include "formats/packed.h"

#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "formats/formats_test_util.h"
#include "formats/mx.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

class PackedPairs : public testing::Test {
 protected:
  const Inventory& inventory(std::vector<TensorSpec> tensors) {
    fs::remove(folder_.path() / "x.safetensors");
    SafetensorsWriter(folder_.path() / "x.safetensors", std::move(tensors), {}, SafetensorsWriter::Mode::sparse).finish();
    inventory_ = Inventory::scan(folder_.path());
    return inventory_;
  }
  std::string message_of(std::vector<TensorSpec> tensors) {
    const auto failure = guard([&] { (void)PackedTensors(inventory(std::move(tensors))); });
    if (!failure) return "no error";
    EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
    return failure->message;
  }

  TempFolder folder_;
  Inventory inventory_;
};

TEST_F(PackedPairs, AreFoundByPresenceAndShownAsVirtualWeights) {
  const PackedTensors packed(inventory({{"a.weight_packed", DType::u8, {6, 32}},
                                        {"a.weight_scale", DType::u8, {6, 2}},
                                        {"b.weight", DType::bf16, {6, 64}},
                                        {"c.weight_packed", DType::u8, {1, 16}},
                                        {"c.weight_scale", DType::u8, {1, 1}}}));
  ASSERT_EQ(packed.pairs().size(), 2U);
  const PackedPair* a = packed.find("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(packed.virtual_name(*a), "a.weight");
  EXPECT_EQ(packed.virtual_shape(*a), Shape({6, 64}));
  EXPECT_EQ(inventory_.name(a->scale), "a.weight_scale");
  EXPECT_EQ(packed.find("b.weight"), nullptr);
  EXPECT_EQ(packed.find("a"), nullptr);
  EXPECT_EQ(packed.find("a.weight_packed"), nullptr);
  EXPECT_FALSE(packed_names(packed.inventory()).has_zero_points);
}

TEST_F(PackedPairs, FaultsAreNamed) {
  const TensorSpec packed{"a.weight_packed", DType::u8, {6, 32}};
  const TensorSpec scale{"a.weight_scale", DType::u8, {6, 2}};
  EXPECT_THAT(message_of({packed}),
              AllOf(HasSubstr("'a.weight_packed'"), HasSubstr("'a.weight_scale'"), HasSubstr("missing scale tensor")));
  EXPECT_THAT(message_of({scale}),
              AllOf(HasSubstr("'a.weight_scale'"), HasSubstr("orphan scale"), HasSubstr("a.weight_packed")));
  EXPECT_THAT(message_of({{"a.weight_packed", DType::i8, {6, 32}}, scale}),
              AllOf(HasSubstr("'a.weight_packed'"), HasSubstr("must be U8"), HasSubstr("I8")));
  EXPECT_THAT(message_of({packed, {"a.weight_scale", DType::f32, {6, 2}}}),
              AllOf(HasSubstr("'a.weight_scale'"), HasSubstr("must be U8"), HasSubstr("F32")));
  EXPECT_THAT(message_of({{"a.weight_packed", DType::u8, {192}}, scale}), HasSubstr("two-dimensional"));
  EXPECT_THAT(message_of({packed, {"a.weight_scale", DType::u8, {6, 2, 1}}}), HasSubstr("two-dimensional"));
  EXPECT_THAT(message_of({{"a.weight_packed", DType::u8, {6, 24}}, scale}),
              AllOf(HasSubstr("'a.weight_packed'"), HasSubstr("multiple of 16 packed bytes"), HasSubstr("[6, 24]")));
  EXPECT_THAT(message_of({packed, {"a.weight_scale", DType::u8, {6, 1}}}),
              AllOf(HasSubstr("incompatible"), HasSubstr("[6, 32]"), HasSubstr("[6, 1]")));
  EXPECT_THAT(message_of({packed, {"a.weight_scale", DType::u8, {5, 2}}}), HasSubstr("incompatible"));
  EXPECT_THAT(message_of({{"a.weight_packed", DType::u8, {0, 32}}, {"a.weight_scale", DType::u8, {0, 2}}}),
              HasSubstr("with elements"));
  EXPECT_THAT(message_of({packed, scale, {"a.weight", DType::bf16, {6, 64}}}), HasSubstr("conflicts with a stored tensor"));
  EXPECT_EQ(message_of({packed, scale}), "no error");
}

TEST(PackedFixtures, BrokenPairsAreRefused) {
  const fs::path bad = fs::path(WEFT_FIXTURES) / "bad";
  for (const auto& [name, mention] : {std::pair("missing-weight-scale", "experts.1.w3.weight_scale"),
                                      std::pair("wrong-last-dim-packed", "experts.0.w1.weight_packed")}) {
    const Inventory inventory = Inventory::scan(bad / name);
    const auto failure = guard([&] { (void)PackedTensors(inventory); });
    ASSERT_TRUE(failure) << name;
    EXPECT_THAT(failure->message, HasSubstr(mention));
  }
  const Inventory inventory = Inventory::scan(bad / "control-ok");
  const PackedTensors packed(inventory);
  EXPECT_FALSE(packed.pairs().empty());
  const auto everything = [](std::string_view) { return true; };
  const Json good = read_json_file(bad / "control-ok" / "config.json");
  EXPECT_NO_THROW(check_packed_against_config(packed_names(packed.inventory()), good, "config.json", everything));
  const Json other = read_json_file(bad / "unsupported-quant-format" / "config.json");
  const auto failure =
      guard([&] { check_packed_against_config(packed_names(packed.inventory()), other, "config.json", everything); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, AllOf(HasSubstr("quantization_config.format"), HasSubstr("nvfp4-pack-quantized")));
  const auto none =
      guard([&] { check_packed_against_config(packed_names(packed.inventory()), Json::object(), "config.json", everything); });
  ASSERT_TRUE(none);
  EXPECT_THAT(none->message, AllOf(HasSubstr("config.json"), HasSubstr("quantization_config")));
}

// ---- Configuration (mx_formats 2.4; the published values of K3 spec 1.3)
// ------------------------------------------------------

Json published() {
  return Json::parse(R"({
    "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
    "kv_cache_scheme": null, "global_compression_ratio": null,
    "config_groups": {"group_0": {
      "format": "mxfp4-pack-quantized", "targets": ["Linear"], "input_activations": null, "output_activations": null,
      "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false,
                  "scale_dtype": "torch.uint8", "observer": "minmax", "zp_dtype": null, "actorder": null,
                  "block_structure": null}}},
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
               "re:.*vision_tower.*", "re:.*mm_projector.*"]})");
}

std::string message_of(const Json& config, bool has_zero_points = false) {
  const auto failure = guard([&] { (void)check_quantization_config(config, "config.json", has_zero_points); });
  if (!failure) return "no error";
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
  EXPECT_THAT(failure->message, HasSubstr("[config.json]"));
  return failure->message;
}

TEST(QuantizationConfig, PublishedValuesPass) {
  const QuantizationRules rules = check_quantization_config(published(), "config.json", true);
  EXPECT_THAT(rules.targets, ElementsAre("Linear"));
  EXPECT_EQ(rules.ignore.size(), 6U);
}

TEST(QuantizationConfig, EveryWrongValueIsNamed) {
  struct Change {
    std::string pointer;
    std::string value;  // JSON, or empty to remove the key
    std::string wanted;
  };
  const std::string group = "/config_groups/group_0";
  const std::vector<Change> changes = {
      {"/quant_method", "", "quant_method"},
      {"/quant_method", R"("gptq")", "gptq"},
      {"/format", "", "quantization_config.format"},
      {"/format", R"("nvfp4-pack-quantized")", "nvfp4-pack-quantized"},
      {"/config_groups", "", "config_groups"},
      {"/config_groups", "{}", "config_groups"},
      {"/config_groups", "[]", "config_groups"},
      {group, "3", "config_groups.group_0"},
      {group + "/format", R"("pack-quantized")", "config_groups.group_0.format"},
      {group + "/targets", "", "group_0.targets"},
      {group + "/targets", "[]", "group_0.targets"},
      {group + "/targets", "[1]", "group_0.targets"},
      {group + "/targets", R"("Linear")", "group_0.targets"},
      {group + "/input_activations", R"({"num_bits": 8})", "input_activations"},
      {group + "/output_activations", "{}", "output_activations"},
      {group + "/weights", "", "group_0.weights"},
      {group + "/weights/num_bits", "", "weights.num_bits"},
      {group + "/weights/num_bits", "8", "weights.num_bits"},
      {group + "/weights/num_bits", "4.0", "weights.num_bits"},
      {group + "/weights/num_bits", R"("4")", "weights.num_bits"},
      {group + "/weights/type", R"("int")", "weights.type"},
      {group + "/weights/strategy", R"("channel")", "weights.strategy"},
      {group + "/weights/group_size", "16", "weights.group_size"},
      {group + "/weights/symmetric", "false", "weights.symmetric"},
      {group + "/weights/symmetric", "1", "weights.symmetric"},
      {group + "/weights/dynamic", "true", "weights.dynamic"},
      {group + "/weights/dynamic", "", "weights.dynamic"},
      {group + "/weights/scale_dtype", R"("torch.float8_e4m3fn")", "weights.scale_dtype"},
      {group + "/weights/actorder", R"("group")", "weights.actorder"},
      {group + "/weights/block_structure", "[1]", "weights.block_structure"},
      {group + "/weights/zp_dtype", "8", "weights.zp_dtype"},
      {"/kv_cache_scheme", R"({"num_bits": 8})", "kv_cache_scheme"},
      {"/ignore", R"("lm_head")", "ignore"},
      {"/ignore", "[1]", "ignore"},
  };
  for (const Change& change : changes) {
    Json config = published();
    const Json::json_pointer pointer(change.pointer);
    if (change.value.empty()) {
      config[pointer.parent_pointer()].erase(pointer.back());
    } else {
      config[pointer] = Json::parse(change.value);
    }
    EXPECT_THAT(message_of(config), HasSubstr(change.wanted)) << change.pointer << " " << change.value;
  }
  EXPECT_THAT(message_of(Json::array()), HasSubstr("quantization_config"));
}

TEST(QuantizationConfig, OptionalKeysMayBeAbsent) {
  Json config = published();
  config.erase("ignore");
  Json& group = config["config_groups"]["group_0"];
  for (const char* key : {"format", "input_activations", "output_activations"}) group.erase(key);
  for (const char* key : {"zp_dtype", "actorder", "block_structure", "observer"}) group["weights"].erase(key);
  EXPECT_EQ(message_of(config), "no error");
}

TEST(QuantizationConfig, ZeroPointDtypeIsFineWithoutZeroPoints) {
  Json config = published();
  config["config_groups"]["group_0"]["weights"]["zp_dtype"] = "torch.uint8";
  EXPECT_EQ(message_of(config, false), "no error");
  EXPECT_THAT(message_of(config, true), HasSubstr("zp_dtype"));
}

TEST(QuantizationConfig, StandsAtEitherLevelOrEquallyAtBoth) {
  const Json one = {{"format", "x"}};
  const Json other = {{"format", "y"}};
  EXPECT_EQ(find_quantization_config({{"a", 1}}, "c"), nullptr);
  EXPECT_EQ(find_quantization_config(Json::array(), "c"), nullptr);
  const Json top = {{"quantization_config", one}};
  EXPECT_EQ(*find_quantization_config(top, "c"), one);
  const Json inner = {{"text_config", top}};
  EXPECT_EQ(*find_quantization_config(inner, "c"), one);
  const Json both = {{"quantization_config", one}, {"text_config", top}};
  EXPECT_EQ(*find_quantization_config(both, "c"), one);
  const Json differing = {{"quantization_config", other}, {"text_config", top}};
  EXPECT_THROW((void)find_quantization_config(differing, "c"), Error);
}

class PackedPolicy : public PackedPairs {
 protected:
  std::string policy_message(const std::string& module, const QuantizationRules& rules, bool linear = true) {
    const PackedTensors packed(
        inventory({{module + ".weight_packed", DType::u8, {1, 16}}, {module + ".weight_scale", DType::u8, {1, 1}}}));
    const auto failure = guard([&] {
      check_packed_policy(packed_names(packed.inventory()), rules, "config.json", [&](std::string_view) { return linear; });
    });
    return failure ? failure->message : "no error";
  }
};

TEST_F(PackedPolicy, FollowsTargetsAndIgnore) {
  const QuantizationRules rules = check_quantization_config(published(), "config.json", false);
  const std::string layer = "language_model.model.layers.1.";
  EXPECT_EQ(policy_message(layer + "block_sparse_moe.experts.10.w1", rules), "no error");
  for (const char* name : {"self_attn.q_proj", "block_sparse_moe.shared_experts.up_proj", "mlp.gate_proj"}) {
    EXPECT_THAT(policy_message(layer + name, rules),
                AllOf(HasSubstr(name), HasSubstr("outside the packed-weight policy"), HasSubstr("config.json")));
  }
  EXPECT_THAT(policy_message(layer + "block_sparse_moe.experts.10.w1", rules, false), HasSubstr("outside"));
}

TEST_F(PackedPolicy, PatternsAreAnchoredAtTheStartOnly) {
  EXPECT_THAT(policy_message("model.lm_head", {{"Linear"}, {"re:lm_head"}}), "no error");
  EXPECT_THAT(policy_message("lm_head.x", {{"Linear"}, {"re:lm_head"}}), HasSubstr("outside"));
  EXPECT_THAT(policy_message("lm_head.x", {{"Linear"}, {"lm_head"}}), "no error");
  EXPECT_THAT(policy_message("lm_head", {{"Linear"}, {"lm_head"}}), HasSubstr("outside"));
  EXPECT_THAT(policy_message("x.y", {{"x.y"}, {}}), "no error");
  EXPECT_THAT(policy_message("x.z", {{"x.y"}, {}}), HasSubstr("outside"));
  EXPECT_THAT(policy_message("x.z", {{"re:x[.]z"}, {}}), "no error");
  EXPECT_THAT(policy_message("x.z", {{"re:x[.z"}, {}}), AllOf(HasSubstr("re:x[.z"), HasSubstr("not understood")));
}

TEST_F(PackedPolicy, DigitsInPatternsAndNamesAreToldApart) {
  std::vector<TensorSpec> specs;
  for (const char* expert : {"0", "1", "2", "12"}) {
    specs.push_back({fmt::format("experts.{}.w.weight_packed", expert), DType::u8, {1, 16}});
    specs.push_back({fmt::format("experts.{}.w.weight_scale", expert), DType::u8, {1, 1}});
  }
  const PackedTensors packed(inventory(specs));
  const auto linear = [](std::string_view) { return true; };
  const auto failure =
      guard([&] { check_packed_policy(packed_names(packed.inventory()), {{"Linear"}, {"re:experts\\.2\\."}}, "c", linear); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("experts.2.w"));
  const auto exact =
      guard([&] { check_packed_policy(packed_names(packed.inventory()), {{"Linear"}, {"experts.1.w"}}, "c", linear); });
  ASSERT_TRUE(exact);
  EXPECT_THAT(exact->message, HasSubstr("experts.1.w"));
  const auto length =
      guard([&] { check_packed_policy(packed_names(packed.inventory()), {{"Linear"}, {"re:experts\\...\\.w"}}, "c", linear); });
  ASSERT_TRUE(length);
  EXPECT_THAT(length->message, HasSubstr("experts.12.w"));
  EXPECT_NO_THROW(check_packed_policy(packed_names(packed.inventory()), {{"Linear"}, {"re:experts\\.[^.]+\\.v"}}, "c", linear));
}

TEST_F(PackedPolicy, HostilePatternsAndNamesEnd) {
  const std::string name(20'000, 'a');
  EXPECT_EQ(policy_message(name, {{"Linear"}, {"re:(a*)*b"}}), "no error");
  const std::string many_optional = [] {
    std::string text = "re:";
    for (int i = 0; i < 450; ++i) text += "a?";
    return text + "b";
  }();
  EXPECT_EQ(policy_message(name, {{"Linear"}, {many_optional}}), "no error");
  const std::string nested = "re:" + std::string(490, '(') + "b" + std::string(490, ')');
  EXPECT_EQ(policy_message(name, {{"Linear"}, {nested}}), "no error");
  EXPECT_THAT(policy_message("a", {{"Linear"}, {"re:" + std::string(100'000, '(')}}), HasSubstr("at most 1000"));
  EXPECT_THAT(policy_message("a", {{"Linear"}, {"re:(a?){30000}b"}}), HasSubstr("counted repetition"));
  EXPECT_THAT(policy_message("aa", {{"Linear"}, {"re:(a)\\1"}}), HasSubstr("not understood"));
}

// ---- Slices (mx_formats 2.2)
// ----------------------------------------------------------------------------------------------------

using Bytes = PackedSlice::Bytes;

TEST(PackedSlices, ExamplesOfTheSpecification) {
  const PackedSlice unaligned("w", {2, 64}, 0, 1, 7, 45);
  EXPECT_EQ(unaligned.packed_row(0), (Bytes{0, 32}));
  EXPECT_EQ(unaligned.scale_row(0), (Bytes{0, 2}));
  EXPECT_EQ(unaligned.crop(), 7);
  EXPECT_EQ(unaligned.groups(), 2);
  const PackedSlice second("w", {2, 64}, 1, 2, 32, 64);
  EXPECT_EQ(second.packed_row(0), (Bytes{32 + 16, 32 + 32}));
  EXPECT_EQ(second.scale_row(0), (Bytes{2 + 1, 2 + 2}));
  EXPECT_EQ(second.crop(), 0);
  const PackedSlice full("w", {10, 64}, 3, 7, 0, 64);
  EXPECT_THAT(full.packed_ranges(), ElementsAre(Bytes{96, 224}));
  EXPECT_THAT(full.scale_ranges(), ElementsAre(Bytes{6, 14}));
  EXPECT_EQ(second.packed_ranges().size(), 1U);
  EXPECT_EQ(PackedSlice("w", {10, 64}, 3, 7, 0, 32).packed_ranges().size(), 4U);
  EXPECT_TRUE(PackedSlice("w", {10, 64}, 3, 3, 0, 64).packed_ranges().empty());
  EXPECT_TRUE(PackedSlice("w", {10, 64}, 3, 4, 33, 33).scale_ranges().empty());
}

TEST(PackedSlices, RangesOutsideTheTensorAreRefused) {
  const auto message = [](int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const auto failure = guard([&] { (void)PackedSlice("the.weight", {4, 64}, r0, r1, c0, c1); });
    return failure ? failure->message : std::string("no error");
  };
  EXPECT_THAT(message(0, 5, 0, 64), AllOf(HasSubstr("the.weight"), HasSubstr("[0, 5)"), HasSubstr("[4, 64]")));
  EXPECT_THAT(message(-1, 4, 0, 64), HasSubstr("[-1, 4)"));
  EXPECT_THAT(message(3, 2, 0, 64), HasSubstr("[3, 2)"));
  EXPECT_THAT(message(0, 4, 0, 65), HasSubstr("[0, 65)"));
  EXPECT_THAT(message(0, 4, 40, 39), HasSubstr("[40, 39)"));
  EXPECT_EQ(message(4, 4, 64, 64), "no error");
  EXPECT_THROW(PackedSlice("w", {4, 40}, 0, 1, 0, 1), Error);
}

TEST(PackedSlices, ThousandRandomSlicesMatchTheFullDecode) {
  constexpr int64_t kRows = 9;
  constexpr int64_t kCols = 160;
  std::mt19937 random(17);
  std::vector<uint8_t> packed(kRows * kCols / 2);
  std::vector<uint8_t> scales(kRows * kCols / 32);
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : scales) byte = static_cast<uint8_t>(random() % 253);
  std::vector<float> full(kRows * kCols);
  mxfp4_decode(packed, scales, full);
  for (int round = 0; round < 1000; ++round) {
    const auto pick = [&](int64_t size) {
      auto a = static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1));
      auto b = static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1));
      return std::pair(std::min(a, b), std::max(a, b));
    };
    const auto [r0, r1] = pick(kRows);
    const auto [c0, c1] = pick(kCols);
    const PackedSlice slice("w", {kRows, kCols}, r0, r1, c0, c1);
    const auto gather = [](const std::vector<uint8_t>& from, const std::vector<Bytes>& ranges) {
      std::vector<uint8_t> bytes;
      for (const Bytes& range : ranges) bytes.insert(bytes.end(), from.begin() + range.begin, from.begin() + range.end);
      return bytes;
    };
    const std::vector<uint8_t> packed_bytes = gather(packed, slice.packed_ranges());
    const std::vector<uint8_t> scale_bytes = gather(scales, slice.scale_ranges());
    const int64_t groups = c0 == c1 ? 0 : (c1 + 31) / 32 - c0 / 32;
    ASSERT_EQ(std::ssize(packed_bytes), (r1 - r0) * groups * 16);
    ASSERT_EQ(std::ssize(scale_bytes), (r1 - r0) * groups);
    std::vector<float> out(static_cast<size_t>((r1 - r0) * (c1 - c0)));
    std::vector<uint16_t> bf16(out.size());
    slice.decode(packed_bytes, scale_bytes, out);
    slice.decode_bf16(packed_bytes, scale_bytes, bf16);
    for (int64_t r = 0; r < r1 - r0; ++r) {
      for (int64_t c = 0; c < c1 - c0; ++c) {
        const auto i = static_cast<size_t>(r * (c1 - c0) + c);
        const float wanted = full[static_cast<size_t>((r0 + r) * kCols + c0 + c)];
        ASSERT_EQ(out[i], wanted);
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]) >> 16, bf16[i]);
      }
    }
  }
}

TEST(PackedSlices, RowPartsOfAllRanksPartitionTheBytes) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    std::set<int64_t> seen;
    int64_t bytes = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const PackedSlice slice("w", {16, 96}, 16 * rank / ranks, 16 * (rank + 1) / ranks, 0, 96);
      for (const Bytes& range : slice.packed_ranges()) {
        bytes += range.end - range.begin;
        for (int64_t i = range.begin; i < range.end; ++i) seen.insert(i);
      }
    }
    EXPECT_EQ(bytes, 16 * 96 / 2);
    EXPECT_EQ(std::ssize(seen), 16 * 96 / 2);
  }
}

// ---- Scale bytes (ruling R6, case C13)
// ------------------------------------------------------------------------------------------

TEST(ScaleBytes, TheFirstNanIsNamedByTensorRowAndBlock) {
  std::vector<uint8_t> scales(12, 127);
  EXPECT_NO_THROW(check_scales("w.weight_scale", scales, 4));
  scales[6] = 255;
  const auto failure = guard([&] { check_scales("w.weight_scale", scales, 4, 100, 8); });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
  EXPECT_THAT(failure->message, AllOf(HasSubstr("'w.weight_scale'"), HasSubstr("row 101, block 10"), HasSubstr("255 (NaN)")));
}

TEST(ScaleBytes, InfiniteValuesAreRefusedExactlyWhereTheyDecodeToInfinity) {
  for (int scale = 250; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      for (const bool high : {false, true}) {
        std::array<uint8_t, kMxfp4BlockBytes> packed{};
        packed[5] = static_cast<uint8_t>(high ? code << 4 : code);
        const auto s = static_cast<uint8_t>(scale);
        std::array<float, kMxBlock> values{};
        mxfp4_decode_block(packed, s, values);
        const bool finite = std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
        const auto failure = guard([&] { check_finite_blocks("w", packed, std::span(&s, 1), 1); });
        EXPECT_EQ(!failure, finite) << scale << " " << code;
      }
    }
  }
}

}  // namespace
}  // namespace weft
