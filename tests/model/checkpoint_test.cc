// Opening checkpoints: fixtures of other programs, damaged files, K3 spec 2.1, 2.4, 2.5, rulings R3 and R6, case C13.
#include "model/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "formats/safetensors.h"
#include "model/fingerprint.h"

#include "support/golden_model.h"
#include "support/models.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing_support::fixture;
using testing_support::TemporaryFolder;

// What a stage does with all layers: empty when all is well.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}
std::string load_refusal(const fs::path& dir) {
  return refusal([&] {
    const Checkpoint checkpoint(dir);
    checkpoint.require(checkpoint.all_layers());
    checkpoint.check_small_tensors(checkpoint.all_layers());
  });
}

// The golden model with some tensors changed before they are written, as one file without an index.
struct Edited {
  std::vector<TensorSpec> tensors = golden::tensors();
  std::map<std::string, std::vector<std::byte>> bytes;
  Json config = golden::config();

  TensorSpec& at(const std::string& name) {
    for (TensorSpec& spec : tensors)
      if (spec.name == name) return spec;
    throw std::runtime_error("no tensor " + name);
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const TensorSpec& spec) { return spec.name == name; });
  }
  std::vector<std::byte>& data(const std::string& name) {
    return bytes.try_emplace(name, golden::bytes_of(at(name))).first->second;
  }
  void set_floats(const std::string& name, const std::vector<float>& values, const Shape& shape) {
    at(name).shape = shape;
    bytes[name].resize(values.size() * 4);
    std::memcpy(bytes[name].data(), values.data(), values.size() * 4);
  }
  void write(const fs::path& dir) const {
    std::ofstream(dir / "config.json") << config.dump(1);
    SafetensorsWriter writer(dir / "model.safetensors", tensors);
    for (const TensorSpec& spec : tensors) {
      const auto found = bytes.find(spec.name);
      if (found != bytes.end()) {
        writer.append(spec.name, found->second);
      } else {
        std::vector<std::byte> made = golden::bytes_of(spec);
        writer.append(spec.name, made);
      }
    }
    writer.finish();
  }
};
std::string refusal_of(const Edited& edited) {
  const TemporaryFolder dir;
  edited.write(dir.path());
  return load_refusal(dir.path());
}

const std::string kLayer0 = "language_model.model.layers.0.";
const std::string kExpert = "language_model.model.layers.1.block_sparse_moe.experts.";

TEST(Checkpoint, FixturesLoad) {
  for (const char* name : {"tiny-k3-8l", "tiny-k3-26l", "tiny-kimi-linear", "tiny-kimi-linear-hf"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(load_refusal(fixture(name)), "");
  }
  EXPECT_EQ(load_refusal(testing_support::k3_mini()), "");
  const Checkpoint k3(fixture("tiny-k3-8l"));
  EXPECT_THAT(k3.notes(), ::testing::ElementsAre(HasSubstr("vision"), HasSubstr("goldens.safetensors")));
  EXPECT_EQ(k3.weight("model.layers.1.block_sparse_moe.experts.7.w2.weight").format, ops::WeightFormat::mxfp4);
  const Checkpoint linear(fixture("tiny-kimi-linear"));
  EXPECT_THAT(linear.notes(), ::testing::ElementsAre(HasSubstr("goldens.safetensors")));
  const ops::ExpertView expert = linear.expert(LayerIndex(1), 7);
  EXPECT_EQ(expert.w2.format, ops::WeightFormat::bf16);
  EXPECT_EQ(expert.w2.out, 96);
  EXPECT_EQ(expert.w2.in, 48);
}

// The method is named before tensors of its own names are.
TEST(Checkpoint, MethodsOfOtherProgramsAreRefusedByName) {
  const testing_support::TemporaryFolder dir;
  fs::copy(fixture("tiny-qwen3-next-8l"), dir.path() / "model", fs::copy_options::recursive);
  Json config = read_json_file(dir.path() / "model/config.json");
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  write_file_atomic(dir.path() / "model/config.json", config.dump());
  EXPECT_THAT(load_refusal(dir.path() / "model"),
              HasSubstr("quantization_config.quant_method: wanted \"compressed-tensors\" (MXFP4), \"fp8\""));
}

TEST(Checkpoint, BrokenFixtures) {
  const Json expected = read_json_file(fixture("bad") / "expect.json");
  EXPECT_EQ(expected.size(), 15U);
  for (const auto& [name, rule] : expected.items()) {
    SCOPED_TRACE(name);
    const std::string message = load_refusal(fixture("bad") / name);
    EXPECT_EQ(message.empty(), rule.at("loads").get<bool>()) << message;
    for (const Json& mention : rule.at("mention")) EXPECT_THAT(message, HasSubstr(mention.get<std::string>()));
  }
}

// K3 spec 8.4, spot checks of the generator; the views must lead to those very bytes.
TEST(Checkpoint, GoldenModelGenerator) {
  EXPECT_EQ(golden::tensors().size(), 320U);
  EXPECT_EQ(golden::seed_of("language_model.model.norm.weight"), 0x4ef4b031da406a34ULL);
  EXPECT_EQ(golden::draw(0x4ef4b031da406a34ULL, 0), 0xd20634d1cd29d00bULL);
  EXPECT_EQ(golden::seed_of("language_model.model.embed_tokens.weight"), 0xdec43c721d10b8a6ULL);

  const TemporaryFolder dir;
  golden::write(dir.path());
  const Checkpoint checkpoint(dir.path());
  checkpoint.require(checkpoint.all_layers());
  EXPECT_TRUE(checkpoint.notes().empty());
  const Tensor norm = checkpoint.vector_f32("model.norm.weight");
  EXPECT_EQ(norm.shape(), (Shape{32}));
  EXPECT_THAT(std::vector<float>(norm.as<float>().begin(), norm.as<float>().begin() + 4),
              ::testing::ElementsAre(1.15625F, 1.15625F, 0.9375F, 0.84375F));
  const ops::WeightView embed = checkpoint.weight("model.embed_tokens.weight");
  ASSERT_EQ(embed.format, ops::WeightFormat::bf16);
  std::vector<float> row;
  for (int i = 0; i < 4; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, embed.data + 2 * i, 2);
    row.push_back(bf16_to_f32(bits));
  }
  EXPECT_THAT(row, ::testing::ElementsAre(0.4609375F, 0.6171875F, -0.9453125F, -0.4921875F));
  const Tensor a_log = checkpoint.prefix_f32("model.layers.0.self_attn.A_log");
  EXPECT_THAT(std::vector<float>(a_log.as<float>().begin(), a_log.as<float>().end()),
              ::testing::ElementsAre(0.5546875F, 0.5390625F));
  const ops::ExpertView expert = checkpoint.expert(LayerIndex(1), 0);
  EXPECT_EQ(expert.w1.out, 64);
  EXPECT_EQ(expert.w1.in, 32);
  EXPECT_EQ(expert.w2.out, 32);
  EXPECT_EQ(expert.w2.in, 64);
  // 0.09375, -0.03125, 0.1875, -0.375: codes times 2^(s-127).
  constexpr float kMagnitude[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  std::vector<float> decoded;
  for (int c = 0; c < 4; ++c) {
    const int code = static_cast<int>(expert.w1.data[c / 2]) >> (c % 2 == 0 ? 0 : 4) & 15;
    const float scale = std::ldexp(1.0F, static_cast<int>(expert.w1.scales[0]) - 127);
    decoded.push_back((code >= 8 ? -1.0F : 1.0F) * kMagnitude[code & 7] * scale);
  }
  EXPECT_THAT(decoded, ::testing::ElementsAre(0.09375F, -0.03125F, 0.1875F, -0.375F));
  EXPECT_EQ(checkpoint.vector_f32("model.layers.0.self_attn.q_conv1d.weight").shape(), (Shape{32, 4}));
  EXPECT_EQ(checkpoint.vector_f32("model.layers.0.mlp_res_proj.weight").shape(), (Shape{32}));
}

// A stage maps only the files that hold its tensors.
TEST(Checkpoint, MapsOnlyWhatAStageNeeds) {
  const TemporaryFolder dir;
  golden::write(dir.path());  // layers 0 and 1 in the first file, all else in the second
  const Checkpoint checkpoint(dir.path());
  const LayerRange middle{LayerIndex(1), LayerIndex(2)};
  EXPECT_EQ(checkpoint.shards_of(middle), std::vector<int64_t>{0});
  EXPECT_EQ(checkpoint.shards_of({LayerIndex(2), LayerIndex(4)}), std::vector<int64_t>{1});
  EXPECT_EQ(checkpoint.shards_of({LayerIndex(0), LayerIndex(1)}), (std::vector<int64_t>{0, 1}));  // the embedding
  checkpoint.require(middle);
  EXPECT_EQ(checkpoint.mapped().shards, 0);
  for (const ParamSpec& p : checkpoint.params()) {
    if (!checkpoint.owns(middle, p)) continue;
    if (p.matrix)
      for (int64_t e = 0; e < p.copies; ++e) (void)checkpoint.weight(expert_name(p, e));
  }
  checkpoint.check_small_tensors(middle);
  EXPECT_EQ(checkpoint.mapped().shards, 1);
  EXPECT_EQ(checkpoint.mapped().bytes.value,
            static_cast<int64_t>(fs::file_size(dir.path() / "model-00001-of-000002.safetensors")));
}

TEST(Checkpoint, WeightBytes) {
  const TemporaryFolder dir;
  golden::write(dir.path());
  const Checkpoint checkpoint(dir.path());
  const auto stored = [](const std::function<bool(const std::string&)>& keep) {
    int64_t total = 0;
    for (const TensorSpec& spec : golden::tensors())
      if (keep(spec.name)) total += spec.shape.elements() * size_of(spec.dtype);
    return total;
  };
  EXPECT_EQ(checkpoint.weight_bytes(checkpoint.all_layers()).value, stored([](const std::string&) { return true; }));
  EXPECT_EQ(checkpoint.weight_bytes({LayerIndex(1), LayerIndex(3)}).value, stored([](const std::string& name) {
              return name.find(".layers.1.") != std::string::npos || name.find(".layers.2.") != std::string::npos;
            }));
}

TEST(Checkpoint, ALog) {
  const std::string name = kLayer0 + "self_attn.A_log";
  const auto with = [&](const std::vector<float>& values, const Shape& shape) {
    Edited edited;
    edited.set_floats(name, values, shape);
    return refusal_of(edited);
  };
  std::vector<float> padded(16, 0.0F);
  padded[0] = 1.0F;
  padded[1] = 2.0F;
  EXPECT_EQ(with(padded, {16}), "");
  EXPECT_EQ(with({1.0F, 2.0F}, {2}), "");
  EXPECT_EQ(with({1.0F, 2.0F}, {1, 1, 2, 1}), "");
  padded[15] = -0.0F;
  EXPECT_EQ(with(padded, {16}), "");
  for (const float tail : {0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    padded[15] = tail;
    const std::string message = with(padded, {16});
    EXPECT_THAT(message, HasSubstr(name));
    EXPECT_THAT(message, HasSubstr("model.safetensors"));
    EXPECT_THAT(message, HasSubstr("length 16"));
    EXPECT_THAT(message, HasSubstr("2 per-head values"));
  }
  padded[15] = 0.0F;
  padded[1] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(with(padded, {16}), HasSubstr("finite"));
  const std::string shorter = with({1.0F}, {1});
  EXPECT_THAT(shorter, HasSubstr(name));
  EXPECT_THAT(shorter, HasSubstr("length 1, expected at least 2 per-head values"));
  EXPECT_THAT(with({1.0F, 2.0F, 0.0F, 0.0F}, {2, 2}), HasSubstr(name));
}

// Ruling R6: scales are checked at first touch, small tensors at load.
TEST(Checkpoint, C13ScaleByte255) {
  const TemporaryFolder dir;
  Edited edited;
  edited.data(kExpert + "3.w2.weight_scale")[2 * 17 + 1] = std::byte{255};
  edited.write(dir.path());
  EXPECT_EQ(load_refusal(dir.path()), "");
  const Checkpoint checkpoint(dir.path());
  checkpoint.check_expert_scales(LayerIndex(1), 2);
  (void)checkpoint.expert(LayerIndex(1), 3);
  const std::string message = refusal([&] { checkpoint.check_expert_scales(LayerIndex(1), 3); });
  EXPECT_THAT(message, HasSubstr(kExpert + "3.w2.weight_scale"));
  EXPECT_THAT(message, HasSubstr("row 17"));
  EXPECT_THAT(message, HasSubstr("block 1"));
}

TEST(Checkpoint, SmallTensorsMustBeFinite) {
  Edited edited;
  std::vector<std::byte>& norm = edited.data("language_model.model.layers.2.input_layernorm.weight");
  const uint16_t nan = 0x7fc0;
  std::memcpy(norm.data() + 2 * 7, &nan, 2);
  const std::string message = refusal_of(edited);
  EXPECT_THAT(message, HasSubstr("layers.2.input_layernorm"));
  EXPECT_THAT(message, HasSubstr("index 7"));
}

TEST(Checkpoint, ShapesAndTypes) {
  const auto after = [](const std::function<void(Edited&)>& change) {
    Edited edited;
    change(edited);
    return refusal_of(edited);
  };
  const std::string shape = after([](Edited& e) { e.at(kLayer0 + "self_attn.q_proj.weight").shape = {32, 16}; });
  EXPECT_THAT(shape, HasSubstr(kLayer0 + "self_attn.q_proj.weight"));
  EXPECT_THAT(shape, HasSubstr("wanted BF16 [32, 32], found BF16 [32, 16]"));
  EXPECT_THAT(shape, HasSubstr("model.safetensors"));
  EXPECT_THAT(after([](Edited& e) { e.at("language_model.lm_head.weight").dtype = DType::u8; }), HasSubstr("lm_head"));
  // F32 in place of BF16 is exact.
  EXPECT_EQ(after([](Edited& e) { e.at(kLayer0 + "mlp.up_proj.weight").dtype = DType::f32; }), "");
  EXPECT_EQ(after([](Edited& e) { e.at(kLayer0 + "self_attn.dt_bias").dtype = DType::bf16; }), "");
  const std::string missing = after([](Edited& e) { e.erase("language_model.model.norm.weight"); });
  EXPECT_THAT(missing, HasSubstr("language_model.model.norm.weight"));
  EXPECT_THAT(missing, HasSubstr("missing"));

  const std::string experts = after([](Edited& e) {
    for (const int index : {5, 7})
      for (const char* w : {"w1", "w2", "w3"})
        for (const char* part : {"packed", "scale"}) e.erase(fmt::format("{}{}.{}.weight_{}", kExpert, index, w, part));
  });
  EXPECT_THAT(experts, HasSubstr("experts.5."));
  EXPECT_THAT(experts, HasSubstr("wanted 8 experts"));
  const std::string narrow = after([](Edited& e) {
    e.at(kExpert + "6.w3.weight_packed").shape = {32, 16};
    e.at(kExpert + "6.w3.weight_scale").shape = {32, 1};
  });
  EXPECT_THAT(narrow, HasSubstr("experts.6.w3.weight_packed"));
  EXPECT_THAT(narrow, HasSubstr("wanted U8 [64, 16], found U8 [32, 16]"));
  const std::string orphan = after([](Edited& e) { e.erase(kExpert + "6.w3.weight_packed"); });
  EXPECT_THAT(orphan, HasSubstr("experts.6.w3.weight_scale"));
  const std::string half = after([](Edited& e) { e.erase(kExpert + "6.w3.weight_scale"); });
  EXPECT_THAT(half, HasSubstr("experts.6.w3.weight_scale"));
}

TEST(Checkpoint, Names) {
  const auto add = [](Edited& e, const std::string& name) { e.tensors.push_back({name, DType::bf16, {4}}); };
  {
    Edited edited;
    add(edited, "language_model.model.layers.0.self_attn.extra.weight");
    EXPECT_THAT(refusal_of(edited), HasSubstr("self_attn.extra.weight"));
    const TemporaryFolder dir;
    edited.write(dir.path());
    const Checkpoint allowed(dir.path(), {.allow_unknown_tensors = true});
    EXPECT_THAT(allowed.notes(), ::testing::ElementsAre(HasSubstr("self_attn.extra.weight")));
  }
  for (const char* name : {"language_model.model.layers.1.block_sparse_moe.experts.8.w1.weight",
                           "language_model.model.layers.1.block_sparse_moe.experts.01.w1.weight",
                           "language_model.model.layers.1.block_sparse_moe.experts.-1.w1.weight",
                           "language_model.model.layers.x.input_layernorm.weight", "model.norm.bias"}) {
    Edited edited;
    add(edited, name);
    EXPECT_THAT(refusal_of(edited), HasSubstr(fmt::format("tensor '{}': unknown", name)));
  }
  {
    Edited edited;
    for (const char* name : {"vision_tower.a", "mm_projector.b", "vision_model.c", "multi_modal_projector.d"})
      add(edited, name);
    for (const char* name : {"mtp.a", "language_model.model.mtp.b", "language_model.model.layers.5.input_layernorm.weight",
                             "language_model.model.layers.99999999999999999999.x"})
      add(edited, name);
    const TemporaryFolder dir;
    edited.write(dir.path());
    const Checkpoint checkpoint(dir.path());
    EXPECT_THAT(checkpoint.notes(),
                ::testing::UnorderedElementsAre(HasSubstr("4 tensors of the vision"), HasSubstr("2 tensors of multi"),
                                                HasSubstr("2 tensors of layers above")));
  }
  {
    // K3 spec 2.1: legacy spellings and the alias; names without the prefix.
    Edited edited;
    edited.at(kLayer0 + "self_attention_res_proj.weight").name = kLayer0 + "self_attention_res.proj_weight";
    edited.at(kLayer0 + "mlp_res_norm.weight").name = kLayer0 + "mlp_res.norm_weight";
    edited.at("language_model.model.output_attn_res_proj.weight").name = "language_model.model.output_attn_res.proj_weight";
    edited.at("language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias").name =
        "model.layers.1.block_sparse_moe.e_score_correction_bias";
    EXPECT_EQ(refusal_of(edited), "");
    edited.tensors.push_back({"language_model.model.output_attn_res_proj.weight", DType::bf16, {1, 32}});
    EXPECT_THAT(refusal_of(edited), ::testing::AllOf(HasSubstr("wanted one tensor"), HasSubstr("output_attn_res.proj_weight")));
  }
}

TEST(Checkpoint, C13QuantizationKeysDeletedInTurn) {
  // The rules that mx_formats 2.4 lets be absent.
  const std::set<std::string> optional = {"ignore",   "format (group)",  "input_activations", "output_activations",
                                          "actorder", "block_structure", "zp_dtype"};
  Edited whole;
  whole.config["text_config"].erase("quantization_config");
  EXPECT_THAT(refusal_of(whole), HasSubstr("quantization_config"));
  const Json rules = golden::config()["text_config"]["quantization_config"];
  const auto check = [&](const std::string& key, const std::string& label, const std::function<Json&(Json&)>& object) {
    SCOPED_TRACE(label);
    Edited edited;
    object(edited.config["text_config"]["quantization_config"]).erase(key);
    const std::string message = refusal_of(edited);
    if (label == "ignore" || optional.contains(label))
      EXPECT_EQ(message, "");
    else
      EXPECT_THAT(message, HasSubstr(key));
  };
  for (const auto& [key, value] : rules.items()) check(key, key, [](Json& q) -> Json& { return q; });
  for (const auto& [key, value] : rules["config_groups"]["group_0"].items())
    check(key, key == "format" ? "format (group)" : key, [](Json& q) -> Json& { return q["config_groups"]["group_0"]; });
  for (const auto& [key, value] : rules["config_groups"]["group_0"]["weights"].items())
    check(key, key, [](Json& q) -> Json& { return q["config_groups"]["group_0"]["weights"]; });
}

// Ruling R3: only num_hidden_layers reduced.
TEST(Checkpoint, TruncatedCopyLoadsWithOneNote) {
  Edited edited;
  edited.config["text_config"]["num_hidden_layers"] = 3;
  const TemporaryFolder dir;
  edited.write(dir.path());
  const Checkpoint checkpoint(dir.path());
  checkpoint.require(checkpoint.all_layers());
  EXPECT_EQ(checkpoint.config().layer_count, 3);
  ASSERT_EQ(checkpoint.notes().size(), 1U);
  EXPECT_THAT(checkpoint.notes()[0], HasSubstr("num_hidden_layers is 3"));
  EXPECT_THAT(checkpoint.notes()[0], HasSubstr("tensors"));
}

TEST(Checkpoint, WhatTheIndexLeavesOutOrMiscountsIsNoted) {
  const TemporaryFolder dir;
  Edited edited;
  edited.write(dir.path());
  Json weight_map;
  for (const TensorSpec& spec : edited.tensors) weight_map[spec.name] = "model.safetensors";
  const Json index = {{"metadata", {{"total_size", 7}}}, {"weight_map", weight_map}};
  std::ofstream(dir.path() / "model.safetensors.index.json") << index;
  fs::copy_file(dir.path() / "model.safetensors", dir.path() / "old.safetensors");
  const Checkpoint checkpoint(dir.path());
  EXPECT_THAT(checkpoint.notes(), ::testing::ElementsAre(HasSubstr("old.safetensors"), HasSubstr("states 7 bytes")));
}

TEST(Checkpoint, TiedEmbeddings) {
  Edited edited;
  edited.config["tie_word_embeddings"] = true;
  edited.config["text_config"]["tie_word_embeddings"] = true;
  const TemporaryFolder dir;
  edited.write(dir.path());
  const Checkpoint checkpoint(dir.path());
  EXPECT_THAT(checkpoint.notes(), ::testing::ElementsAre(HasSubstr("lm_head")));
  EXPECT_FALSE(checkpoint.has("lm_head.weight"));
  const int64_t table = 64 * 32 * 2;
  const int64_t all = checkpoint.weight_bytes(checkpoint.all_layers()).value;
  EXPECT_EQ(checkpoint.weight_bytes({LayerIndex(0), LayerIndex(2)}).value +
                checkpoint.weight_bytes({LayerIndex(2), LayerIndex(5)}).value,
            all + table);
}

TEST(Fingerprint, SeesWhatItNames) {
  const TemporaryFolder dir;
  golden::write(dir.path());
  const auto print = [](const fs::path& path, ops::Profile profile = ops::Profile::exact, std::string_view dtypes = "f32") {
    return model_fingerprint(Checkpoint(path), profile, dtypes);
  };
  const std::string base = print(dir.path());
  EXPECT_THAT(base, ::testing::MatchesRegex("[0-9a-f]{64}"));
  EXPECT_EQ(print(dir.path()), base);
  const TemporaryFolder copy;
  fs::copy(dir.path(), copy.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  EXPECT_EQ(print(copy.path()), base);
  EXPECT_NE(print(dir.path(), ops::Profile::bf16), base);
  EXPECT_NE(print(dir.path(), ops::Profile::exact, "bf16"), base);

  // One data byte, then one byte of the configuration that means nothing.
  const fs::path shard = copy.path() / "model-00002-of-000002.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  file.close();
  EXPECT_NE(print(copy.path()), base);
  std::ofstream(dir.path() / "config.json", std::ios::app) << "\n";
  EXPECT_NE(print(dir.path()), base);
}

}  // namespace
}  // namespace weft
