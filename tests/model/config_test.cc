// The Kimi configuration: K3 spec 1.5, rulings R3 and R13, case C13. The oracle is the specification's tables.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "model/families/kimi_config.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Json published() { return read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"); }
Json fixture(const std::string& name) { return read_json_file(std::string(WEFT_FIXTURES) + "/" + name + "/config.json"); }

// What parsing says: empty when it accepts.
std::string refusal(const Json& json) {
  try {
    (void)parse_kimi_config(json, "config.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string refusal_after(const std::function<void(Json&)>& change) {
  Json json = published();
  change(json);
  return refusal(json);
}

TEST(KimiConfig, Published) {
  const KimiConfig c = parse_kimi_config(published(), "config.json");
  EXPECT_EQ(c.model_type, "kimi_k3");
  EXPECT_TRUE(c.nested);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.layer_count, 93);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.rms_norm_eps, 1e-5F);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.max_context, 1048576);
  EXPECT_EQ(c.eos_ids, std::vector<int64_t>{163586});
  EXPECT_EQ(c.kda_heads, 96);
  EXPECT_EQ(c.kda_head_dim, 128);
  EXPECT_EQ(c.kda_width(), 12288);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.gate_lower_bound, -5.0F);
  EXPECT_TRUE(c.full_rank_gate);
  EXPECT_EQ(c.mla.heads, 96);
  EXPECT_EQ(c.mla.nope, 128);
  EXPECT_EQ(c.mla.rope, 64);
  EXPECT_EQ(c.mla.value, 128);
  EXPECT_EQ(c.mla.latent, 512);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_TRUE(c.mla_output_gate);
  EXPECT_EQ(c.activation.kind, ops::Activation::Kind::situ);
  EXPECT_EQ(c.activation.beta, 4.0F);
  EXPECT_EQ(c.activation.linear_beta, 25.0F);
  EXPECT_EQ(c.intermediate_size, 33792);
  EXPECT_EQ(c.experts, 896);
  EXPECT_EQ(c.router.experts_per_token, 16);
  EXPECT_TRUE(c.router.renormalize);
  EXPECT_EQ(c.router.scale, 1.0F);
  EXPECT_EQ(c.shared_experts, 2);
  EXPECT_EQ(c.moe_intermediate_size, 3072);
  EXPECT_EQ(c.latent_size, 3584);
  EXPECT_TRUE(c.latent_norm);
  EXPECT_EQ(c.residual_block, 12);
  EXPECT_TRUE(c.notes.empty());
  // K3 spec 1.2: 0-based MLA layers are 3, 7, ..., 91 and 92.
  for (int64_t l = 0; l < 93; ++l) EXPECT_EQ(c.is_kda[static_cast<size_t>(l)], l % 4 != 3 && l != 92) << l;
  EXPECT_FALSE(c.is_moe(LayerIndex(0)));
  EXPECT_TRUE(c.is_moe(LayerIndex(1)));
  // K3 spec 5.
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{1, 1},  {12, 1}, {13, 2}, {24, 2}, {31, 3},
                                                           {47, 4}, {48, 4}, {62, 6}, {84, 7}, {92, 8}};
  for (const auto& [s, k] : blocks) EXPECT_EQ(c.blocks_before(LayerIndex(s)), k) << s;
}

TEST(KimiConfig, FixturesOfOtherProgramsLoad) {
  const KimiConfig k3 = parse_kimi_config(fixture("tiny-k3-8l"), "config.json");
  EXPECT_EQ(k3.layer_count, 8);
  EXPECT_TRUE(k3.residual_block.has_value());
  for (const char* name : {"tiny-kimi-linear", "tiny-kimi-linear-hf"}) {
    SCOPED_TRACE(name);
    const KimiConfig c = parse_kimi_config(fixture(name), "config.json");
    EXPECT_EQ(c.model_type, "kimi_linear");
    EXPECT_FALSE(c.nested);
    EXPECT_FALSE(c.residual_block.has_value());
    EXPECT_FALSE(c.gate_lower_bound.has_value());
    EXPECT_FALSE(c.full_rank_gate);
    EXPECT_FALSE(c.q_lora_rank.has_value());
    EXPECT_FALSE(c.mla_output_gate);
    EXPECT_FALSE(c.latent_size.has_value());
    EXPECT_EQ(c.activation.kind, ops::Activation::Kind::silu);
    EXPECT_EQ(c.router.scale, 2.446F);
    EXPECT_TRUE(c.quantization.is_null());
  }
}

// A flat configuration with attn_res_block_size is K3's text model (K3 spec 7).
TEST(KimiConfig, FlatK3) {
  const Json flat = published().at("text_config");
  const KimiConfig c = parse_kimi_config(flat, "config.json");
  EXPECT_FALSE(c.nested);
  EXPECT_EQ(c.residual_block, 12);
  EXPECT_EQ(c.gate_lower_bound, -5.0F);
  for (const char* key : {"mla_use_output_gate", "q_lora_rank", "routed_expert_hidden_size"}) {
    Json changed = flat;
    changed.erase(key);
    EXPECT_THAT(refusal(changed), HasSubstr(key));
  }
}

// C13: each key deleted in turn fails naming it, unless it is listed here with the reason why its absence is harmless.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> keys = {
      // No architectural meaning: descriptions, generation defaults, ids the forward pass does not read.
      "architectures", "bos_token_id", "dtype", "ignore_index", "image_placeholder", "media_placeholder_token_id",
      "pad_token_id", "text_config.architectures", "text_config.bos_token_id", "text_config.dtype",
      "text_config.initializer_range", "text_config.pad_token_id", "text_config.temperature", "text_config.top_k",
      "text_config.top_p", "text_config.use_cache",
      // Vision is not loaded; a prediction head would be dropped.
      "vision_config", "text_config.num_nextn_predict_layers",
      // One group of experts (num_expert_group and topk_group are required to be 1): grouping cannot matter.
      "text_config.use_grouped_topk", "text_config.topk_method",
      // Stated at both levels; one statement is enough.
      "eos_token_id", "text_config.eos_token_id", "tie_word_embeddings",
      // K3 spec 1.5: absent betas have a meaning, and a note says so.
      "text_config.activation_situ_beta", "text_config.activation_situ_linear_beta",
      // Whether tensors are packed is seen in the files; packed ones without this key are refused there (checkpoint_test).
      "text_config.quantization_config"};
  return keys;
}

std::vector<std::string> paths_of(const Json& json) {
  std::vector<std::string> paths;
  for (const auto& [key, value] : json.items()) paths.push_back(key);
  for (const auto& [key, value] : json.at("text_config").items()) paths.push_back("text_config." + key);
  for (const auto& [key, value] : json.at("text_config").at("linear_attn_config").items())
    paths.push_back("text_config.linear_attn_config." + key);
  return paths;
}

Json without(Json json, const std::string& path) {
  Json* at = &json;
  std::string rest = path;
  for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    at = &at->at(rest.substr(0, dot));
    rest = rest.substr(dot + 1);
  }
  EXPECT_EQ(at->erase(rest), 1U) << path;
  return json;
}

TEST(KimiConfig, C13EachKeyDeletedInTurn) {
  size_t harmless = 0;
  for (const std::string& path : paths_of(published())) {
    SCOPED_TRACE(path);
    const std::string message = refusal(without(published(), path));
    if (harmless_keys().contains(path)) {
      EXPECT_EQ(message, "");
      ++harmless;
      continue;
    }
    EXPECT_THAT(message, HasSubstr(path.substr(path.rfind('.') + 1)));
    EXPECT_THAT(message, HasSubstr("missing"));
  }
  EXPECT_EQ(harmless, harmless_keys().size());
}

TEST(KimiConfig, C13KimiLinear) {
  const std::set<std::string> harmless = {
      "architectures", "bos_token_id", "dtype",     "head_dim",        "initializer_range", "num_nextn_predict_layers",
      "pad_token_id",
      "q_lora_rank",  // null: a plain q_proj, K3 spec 7
      "rope_scaling",  "rope_theta",   "use_cache", "use_grouped_topk"};
  const Json json = fixture("tiny-kimi-linear");
  for (const auto& [key, value] : json.items()) {
    SCOPED_TRACE(key);
    const std::string message = refusal(without(json, key));
    if (harmless.contains(key)) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_THAT(message, HasSubstr(key));
      EXPECT_THAT(message, HasSubstr("missing"));
    }
  }
}

TEST(KimiConfig, RefusalsNameKeyAndValue) {
  struct Case {
    std::string key;
    Json value;
  };
  const std::vector<Case> cases = {{"hidden_act", "relu2"},
                                   {"moe_router_activation_func", "softmax"},
                                   {"mla_use_nope", false},
                                   {"num_expert_group", 8},
                                   {"topk_group", 2},
                                   {"topk_method", "greedy"},
                                   {"attn_res_block_size", 0},
                                   {"moe_layer_freq", 0},
                                   {"num_experts_per_token", 0},
                                   {"num_experts_per_token", 897},
                                   {"activation_situ_beta", 0.0},
                                   {"activation_situ_beta", -1.0},
                                   {"activation_situ_linear_beta", 0.0},
                                   {"activation_situ_linear_beta", 1e300},
                                   {"num_key_value_heads", 8},  // R13
                                   {"hidden_size", -1},
                                   {"hidden_size", "7168"},
                                   {"hidden_size", 7168.5},
                                   {"hidden_size", nullptr},
                                   {"rms_norm_eps", 0.0},
                                   {"kv_lora_rank", 1LL << 40},
                                   {"num_hidden_layers", 0},
                                   {"eos_token_id", Json::array()},
                                   {"model_type", "llama"},
                                   {"attention_bias", true},
                                   {"tie_word_embeddings", 0},
                                   {"linear_attn_config", Json::array()}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key + " = " + c.value.dump());
    const std::string message = refusal_after([&](Json& json) { json["text_config"][c.key] = c.value; });
    EXPECT_THAT(message, HasSubstr(c.key));
    EXPECT_THAT(message, HasSubstr("found " + c.value.dump()));
  }
  EXPECT_THAT(refusal_after([](Json& j) { j["text_config"]["linear_attn_config"]["gate_lower_bound"] = -5.5; }),
              HasSubstr("-5.5"));
  EXPECT_THAT(refusal_after([](Json& j) { j["text_config"]["linear_attn_config"]["gate_lower_bound"] = 0.0; }),
              HasSubstr("gate_lower_bound"));
  EXPECT_THAT(refusal_after([](Json& j) { j["tie_word_embeddings"] = true; }), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(refusal_after([](Json& j) { j["eos_token_id"] = 163585; }), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal_after([](Json& j) { j["model_type"] = "kimi_vl"; }), HasSubstr("kimi_vl"));
  EXPECT_THAT(refusal(Json::array()), HasSubstr("object"));
}

TEST(KimiConfig, QuantizationAtEitherLevel) {
  Json json = published();
  const Json rules = json["text_config"]["quantization_config"];
  json["text_config"].erase("quantization_config");
  json["quantization_config"] = rules;
  EXPECT_EQ(parse_kimi_config(json, "c").quantization, rules);
  json["text_config"]["quantization_config"] = rules;
  EXPECT_EQ(refusal(json), "");
  json["text_config"]["quantization_config"]["format"] = "other";
  EXPECT_THAT(refusal(json), HasSubstr("quantization_config"));
}

TEST(KimiConfig, PredictionLayersAreNoted) {
  Json json = published();
  json["text_config"]["num_nextn_predict_layers"] = 1;
  const KimiConfig c = parse_kimi_config(json, "config.json");
  ASSERT_EQ(c.notes.size(), 1U);
  EXPECT_THAT(c.notes[0], HasSubstr("num_nextn_predict_layers is 1"));
  json["text_config"]["num_nextn_predict_layers"] = "one";
  EXPECT_THAT(refusal(json), HasSubstr("num_nextn_predict_layers"));
}

// Ruling R3.
TEST(KimiConfig, TruncatedCopy) {
  Json json = published();
  json["text_config"]["num_hidden_layers"] = 5;
  const KimiConfig c = parse_kimi_config(json, "config.json");
  EXPECT_EQ(c.is_kda, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_EQ(c.listed_layers, 93);
  ASSERT_EQ(c.notes.size(), 1U);
  EXPECT_THAT(c.notes[0], HasSubstr("88"));

  const auto lists = [](std::vector<int64_t> kda, std::vector<int64_t> full) {
    return refusal_after([&](Json& j) {
      j["text_config"]["num_hidden_layers"] = 4;
      j["text_config"]["linear_attn_config"]["kda_layers"] = kda;
      j["text_config"]["linear_attn_config"]["full_attn_layers"] = full;
    });
  };
  EXPECT_EQ(lists({1, 2, 3}, {4}), "");
  EXPECT_EQ(lists({1, 2, 3, 9}, {4, 9}), "");  // only entries up to L count
  EXPECT_THAT(lists({0, 1, 2, 3}, {4}), HasSubstr("kda_layers"));
  EXPECT_THAT(lists({1, 2, 3}, {-4, 4}), HasSubstr("full_attn_layers"));
  EXPECT_THAT(lists({1, 2, 3}, {3, 4}), HasSubstr("layer 3 is in both"));
  EXPECT_THAT(lists({1, 2}, {4}), HasSubstr("layer 3 is in neither"));
  EXPECT_THAT(lists({1, 2, 2, 3}, {4}), HasSubstr("layer 2 is listed twice"));
}

}  // namespace
}  // namespace weft
