// The Qwen configuration and its parameter table: Qwen3-Next spec 1.1, 2.1, 2.2 and 11. The oracle is the specification's
// tables.
#include "model/families/qwen_config.h"

#include <functional>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/synth.h"
#include "ops/context.h"
#include "parallel/communicator.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Json published() {
  SynthOptions options;
  options.preset = "qwen3-next";
  return synth_config(options);
}

QwenConfig parse(const Json& json) { return parse_qwen_config(json, "config.json"); }

std::string refusal(const Json& json) {
  try {
    (void)parse(json);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The newer generation of files: layer_types and rope_parameters, and none of the keys that they replace.
Json newer() {
  Json json = published();
  for (const char* key : {"full_attention_interval", "rope_theta", "rope_scaling", "partial_rotary_factor"}) json.erase(key);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000000}, {"partial_rotary_factor", 0.25}};
  json["layer_types"] = Json::array();
  for (int l = 0; l < 48; ++l) json["layer_types"].push_back(l % 4 == 3 ? "full_attention" : "linear_attention");
  return json;
}

// Qwen3.5 35B-A3B in its wrapper (spec 11.1).
Json wrapped() {
  Json text = newer();
  for (const char* key : {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size", "architectures"}) {
    text.erase(key);
  }
  text["model_type"] = "qwen3_5_moe_text";
  text["vocab_size"] = 248320;
  text["eos_token_id"] = 248044;
  text["num_hidden_layers"] = 40;
  text["num_experts"] = 256;
  text["num_experts_per_tok"] = 8;
  return {{"model_type", "qwen3_5_moe"}, {"eos_token_id", 248046}, {"tie_word_embeddings", false}, {"text_config", text}};
}

int64_t parameters(const QwenConfig& config) {
  int64_t sum = 0;
  for (const ParamSpec& p : config.params()) sum += p.shape.elements() * p.copies;
  return sum;
}

TEST(QwenConfig, BothGenerationsSayTheSame) {
  for (const Json& json : {published(), newer()}) {
    const QwenConfig c = parse(json);
    EXPECT_EQ(c.layer_count, 48);
    EXPECT_EQ(std::ranges::count(c.is_full, true), 12);
    EXPECT_TRUE(c.full_at(LayerIndex(3)));
    EXPECT_TRUE(c.full_at(LayerIndex(47)));
    EXPECT_FALSE(c.full_at(LayerIndex(46)));
    EXPECT_EQ(c.rotary, 64);
    EXPECT_EQ(c.rope_theta, 1e7);
    EXPECT_EQ(c.experts, 512);
    EXPECT_EQ(std::ranges::count(c.moe_layers, true), 48);
    EXPECT_EQ(c.eos_ids, std::vector<int64_t>{151645});
    EXPECT_TRUE(c.router.renormalize);
    EXPECT_TRUE(c.interleaved);
    EXPECT_TRUE(c.notes.empty());
  }
}

// Spec 0, 2.1, 4.1 and 11.1.
TEST(QwenConfig, PublishedSizesToTheParameter) {
  const QwenConfig c = parse(published());
  EXPECT_EQ(parameters(c), 79674391296);
  std::map<std::string, int64_t> parts;
  for (const ParamSpec& p : c.params()) {
    if (p.owner != Owner::layer) continue;
    const bool mixer = p.role.starts_with("gdn.") || p.role.starts_with("gqa.");
    const bool mlp = p.role.starts_with("moe.");
    const std::string part = mixer ? "mixer" : mlp ? "moe" : "norms";
    parts[fmt::format("{} {}", part, p.layer)] += p.shape.elements() * p.copies;
  }
  EXPECT_EQ(parts["mixer 0"], 33718464);
  EXPECT_EQ(parts["mixer 3"], 27263488);
  EXPECT_EQ(parts["moe 0"], 1614809088);
  const StateLayout layout = c.state_layout(c.all_layers());
  EXPECT_EQ(layout.slot_floats(), 36 * (32 * 128 * 128 + 3 * 8192));
  EXPECT_EQ(layout.page_floats(), 12 * 64 * 2 * 2 * 256);

  const auto size_of_35 = [](int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads, int64_t values, int64_t ffn,
                             bool tied) {
    Json text = wrapped()["text_config"];
    text["model_type"] = "qwen3_5_text";
    text["hidden_size"] = hidden;
    text["num_hidden_layers"] = layers;
    text["num_attention_heads"] = heads;
    text["num_key_value_heads"] = kv_heads;
    text["linear_num_value_heads"] = values;
    text["intermediate_size"] = ffn;
    text["tie_word_embeddings"] = tied;
    text.erase("layer_types");
    text["full_attention_interval"] = 4;
    for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"})
      text.erase(key);
    return static_cast<double>(parameters(parse(text))) / 1e9;
  };
  EXPECT_NEAR(size_of_35(2560, 32, 16, 4, 32, 9216, true), 4.206, 5e-4);
  EXPECT_NEAR(size_of_35(4096, 32, 16, 4, 32, 12288, false), 8.954, 5e-4);
  EXPECT_NEAR(size_of_35(5120, 64, 24, 4, 48, 17408, false), 26.896, 5e-4);
  EXPECT_NEAR(static_cast<double>(parameters(parse(wrapped()))) / 1e9, 34.661, 5e-4);
}

TEST(QwenConfig, TheWrapperOfQwen35) {
  const QwenConfig c = parse(wrapped());
  EXPECT_EQ(c.eos_ids, (std::vector<int64_t>{248044, 248046}));  // stop on both
  EXPECT_FALSE(c.interleaved);
  EXPECT_TRUE(c.router.renormalize);
  EXPECT_EQ(c.canonical_name("model.language_model.layers.3.self_attn.q_proj.weight"),
            "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(c.canonical_name("language_model.model.layers.3.self_attn.q_proj.weight"),
            "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(c.canonical_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(c.canonical_name("lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(c.is_vision("model.visual.blocks.0.attn.qkv.weight"));
  EXPECT_TRUE(c.is_mtp(c.canonical_name("model.language_model.mtp.fc.weight")));
  Json flat_type = wrapped();
  flat_type["model_type"] = "qwen3_5_moe_text";
  EXPECT_THAT(refusal(flat_type), HasSubstr("without _text, beside text_config, found \"qwen3_5_moe_text\""));
  Json other = wrapped();
  other["text_config"]["model_type"] = "qwen3_next";
  EXPECT_THAT(refusal(other), HasSubstr("text_config.model_type: wanted \"qwen3_5_moe_text\", found \"qwen3_next\""));
}

// Sizes have no defaults: engines that assume some compute plausible garbage (spec 1.1).
TEST(QwenConfig, EachKeyDeletedInTurn) {
  const std::vector<std::string> optional = {
      "architectures", "attention_bias",    "attention_dropout",    "bos_token_id",    "decoder_sparse_step",
      "eos_token_id",  "initializer_range", "intermediate_size",    "mlp_only_layers", "output_router_logits",
      "pad_token_id",  "rope_scaling",      "router_aux_loss_coef", "torch_dtype",     "use_cache"};
  const Json whole = published();
  int64_t needed = 0;
  for (const auto& [key, value] : whole.items()) {
    Json json = whole;
    json.erase(key);
    if (std::ranges::find(optional, key) != optional.end()) {
      EXPECT_EQ(refusal(json), "") << key;
    } else if (key != "model_type") {
      EXPECT_THAT(refusal(json), HasSubstr(key + ": missing")) << key;
      ++needed;
    }
  }
  EXPECT_EQ(needed, 23);
}

TEST(QwenConfig, RefusalsNameKeyAndValue) {
  const auto after = [](const std::function<void(Json&)>& change) {
    Json json = published();
    change(json);
    return refusal(json);
  };
  EXPECT_THAT(after([](Json& j) { j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}}; }),
              HasSubstr("rope_scaling.rope_type: wanted \"default\" (scaled rotation is not supported), found \"yarn\""));
  // In a newer file too, in the older spelling of the type, and by a factor alone: none may run unscaled.
  for (const Json& scaling : {Json{{"rope_type", "yarn"}, {"factor", 4.0}}, Json{{"type", "yarn"}}, Json{{"factor", 4.0}}}) {
    Json json = newer();
    json["rope_scaling"] = scaling;
    EXPECT_THAT(refusal(json), HasSubstr("scaled rotation is not supported")) << scaling.dump();
    json = newer();
    json["rope_parameters"].erase("rope_type");
    json["rope_parameters"].update(scaling);
    EXPECT_THAT(refusal(json), HasSubstr("scaled rotation is not supported")) << scaling.dump();
  }
  EXPECT_EQ(after([](Json& j) { j["rope_scaling"] = {{"rope_type", "default"}}; }), "");
  Json contradicting = newer();
  contradicting["rope_theta"] = 5000000;
  EXPECT_THAT(refusal(contradicting), HasSubstr("rope_theta: wanted the value of rope_parameters, 10000000, found 5000000"));
  EXPECT_THAT(after([](Json& j) { j["use_sliding_window"] = true; }), HasSubstr("use_sliding_window: wanted false"));
  EXPECT_THAT(after([](Json& j) { j["attention_bias"] = true; }), HasSubstr("attention_bias: wanted false"));
  EXPECT_THAT(after([](Json& j) { j["attn_output_gate"] = false; }), HasSubstr("attn_output_gate: wanted true"));
  EXPECT_THAT(after([](Json& j) { j["layer_scale"] = true; }), HasSubstr("layer_scale: wanted null or false"));
  EXPECT_THAT(after([](Json& j) { j["output_gate_type"] = "tanh"; }), HasSubstr("output_gate_type: wanted"));
  EXPECT_THAT(after([](Json& j) { j["hidden_act"] = "gelu"; }), HasSubstr("hidden_act: wanted \"silu\", found \"gelu\""));
  EXPECT_THAT(after([](Json& j) { j["linear_num_value_heads"] = 24; }), HasSubstr("a multiple of linear_num_key_heads, 16"));
  EXPECT_THAT(after([](Json& j) { j["num_key_value_heads"] = 3; }), HasSubstr("a divisor of num_attention_heads, 16"));
  EXPECT_THAT(after([](Json& j) { j["num_experts_per_tok"] = 513; }), HasSubstr("at most num_experts, 512, found 513"));
  EXPECT_THAT(after([](Json& j) { j["partial_rotary_factor"] = 1.5; }), HasSubstr("partial_rotary_factor: wanted"));
  EXPECT_THAT(after([](Json& j) { j["partial_rotary_factor"] = 0.001; }), HasSubstr("partial_rotary_factor: wanted"));
  EXPECT_THAT(after([](Json& j) { j["layer_types"] = {"linear_attention"}; }), HasSubstr("layer_types: wanted a list"));
  EXPECT_THAT(after([](Json& j) {
                j["layer_types"] = Json::array();
                for (int l = 0; l < 48; ++l) j["layer_types"].push_back("sliding_attention");
              }),
              HasSubstr("(entry \"sliding_attention\")"));
  EXPECT_THAT(after([](Json& j) { j["mlp_only_layers"] = {-1}; }),
              HasSubstr("mlp_only_layers: wanted a list of layer indices"));
  EXPECT_THAT(after([](Json& j) { j["eos_token_id"] = 151936; }), HasSubstr("eos_token_id: wanted a token id"));
}

// Spec 1.1: MoE iff not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0, with the global i.
TEST(QwenConfig, DenseLayers) {
  Json json = published();
  json["mlp_only_layers"] = {3};
  json["decoder_sparse_step"] = 2;
  const QwenConfig c = parse(json);
  EXPECT_TRUE(c.is_moe(LayerIndex(1)));
  EXPECT_FALSE(c.is_moe(LayerIndex(2)));
  EXPECT_FALSE(c.is_moe(LayerIndex(3)));
  EXPECT_TRUE(c.is_moe(LayerIndex(47)));
  EXPECT_EQ(c.intermediate_size, 5120);
  Json dense = published();
  dense["num_experts"] = 0;
  EXPECT_FALSE(parse(dense).is_moe(LayerIndex(0)));
}

// The row of each logical element, by the slabs with which the stage splits a product whose column i holds i.
class Rows : public testing::Test {
 protected:
  template <size_t kParts>
  std::array<Tensor, kParts> split(const std::array<int64_t, kParts>& slabs, int64_t groups) {
    int64_t width = 0;
    for (const int64_t slab : slabs) width += slab * groups;
    Tensor x = Tensor::uninitialized(DType::f32, {1, width});
    for (int64_t i = 0; i < width; ++i) x.as<float>()[static_cast<size_t>(i)] = static_cast<float>(i);
    std::array<Tensor, kParts> parts;
    std::array<MutableTensorView, kParts> views;
    for (size_t i = 0; i < kParts; ++i) {
      parts[i] = Tensor::uninitialized(DType::f32, {1, slabs[i] * groups});
      views[i] = parts[i].mutable_view();
    }
    ops::split_groups(context_, x.view(), slabs, views);
    return parts;
  }
  static float at(const Tensor& part, int64_t head, int64_t size, int64_t d) {
    return part.as<float>()[static_cast<size_t>(head * size + d)];
  }

  QwenConfig config_ = parse(published());

 private:
  WorkerPool pool_{1};
  SingleRank comm_;
  ops::Context context_{.backend = ops::Backend::cpu, .pool = &pool_, .comm = &comm_};
};

TEST_F(Rows, InProjQkvz) {
  const auto [q, k, v, z] = split(config_.qkvz_slabs(), 16);
  EXPECT_EQ(at(q, 0, 128, 0), 0);
  EXPECT_EQ(at(k, 0, 128, 0), 128);
  EXPECT_EQ(at(v, 0, 128, 0), 256);
  EXPECT_EQ(at(v, 1, 128, 0), 384);
  EXPECT_EQ(at(z, 0, 128, 0), 512);
  EXPECT_EQ(at(z, 1, 128, 0), 640);
  EXPECT_EQ(at(q, 1, 128, 0), 768);
  EXPECT_EQ(at(q, 3, 128, 5), 2309);
  EXPECT_EQ(at(k, 3, 128, 5), 2437);
  EXPECT_EQ(at(v, 7, 128, 5), 2693);
  EXPECT_EQ(at(z, 7, 128, 5), 2949);
  EXPECT_EQ(at(z, 31, 128, 127), 12287);
}

TEST_F(Rows, InProjBa) {
  const auto [b, a] = split(config_.ba_slabs(), 16);
  const std::map<int64_t, std::pair<float, float>> wanted = {
      {0, {0, 2}}, {1, {1, 3}}, {2, {4, 6}}, {3, {5, 7}}, {31, {61, 63}}};
  for (const auto& [head, rows] : wanted) {
    EXPECT_EQ(at(b, head, 1, 0), rows.first) << head;
    EXPECT_EQ(at(a, head, 1, 0), rows.second) << head;
  }
}

// Spec 2.1 and 3.4: head h is 256 query rows, then 256 gate rows.
TEST_F(Rows, QProj) {
  const auto [query, gate] = split(config_.query_slabs(), 16);
  EXPECT_EQ(at(query, 0, 256, 0), 0);
  EXPECT_EQ(at(gate, 0, 256, 0), 256);
  EXPECT_EQ(at(query, 1, 256, 0), 512);
  EXPECT_EQ(at(gate, 15, 256, 255), 8191);
}

}  // namespace
}  // namespace weft
