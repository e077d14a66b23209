#include "model/families/qwen_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "model/config_section.h"

namespace weft {
namespace {

constexpr std::string_view kPlainRope = "default";

// Qwen3.5 renormalises always and has experts in every layer or in none (spec 11.1).
bool is_next(std::string_view model_type) { return model_type == "qwen3_next"; }

void read_layer_types(const Section& text, QwenConfig& config) {
  const auto layers = static_cast<size_t>(config.layer_count);
  if (text.states("layer_types")) {
    constexpr std::string_view kWanted = R"(a list of "linear_attention" and "full_attention", one a layer)";
    const Json& list = text.at("layer_types", kWanted);
    if (!list.is_array() || list.size() < layers) text.refuse("layer_types", kWanted);
    config.listed_layers = static_cast<int64_t>(list.size());
    for (size_t l = 0; l < list.size(); ++l) {
      const std::string kind = list[l].is_string() ? list[l].get<std::string>() : "";
      if (kind != "linear_attention" && kind != "full_attention")
        text.refuse("layer_types", fmt::format("{} (entry {})", kWanted, shown(list[l])));
      if (l < layers) config.is_full.push_back(kind == "full_attention");
    }
    if (config.listed_layers > config.layer_count)
      config.notes.push_back(fmt::format("num_hidden_layers is {}: {} entries of layer_types above it are ignored",
                                         config.layer_count, config.listed_layers - config.layer_count));
    return;
  }
  const int64_t interval = text.integer("full_attention_interval", 1, kMaxLayers);
  for (int64_t l = 0; l < config.layer_count; ++l) config.is_full.push_back((l + 1) % interval == 0);
}

void read_delta(const Section& text, QwenConfig& config) {
  ops::DeltaShape& delta = config.delta;
  delta.key_heads = text.integer("linear_num_key_heads", 1, kMaxHeads);
  delta.value_heads = text.integer("linear_num_value_heads", 1, kMaxHeads);
  if (delta.value_heads % delta.key_heads != 0)
    text.refuse("linear_num_value_heads", fmt::format("a multiple of linear_num_key_heads, {}", delta.key_heads));
  delta.key_size = text.integer("linear_key_head_dim", 1, kMaxHeadDim);
  delta.value_size = text.integer("linear_value_head_dim", 1, kMaxHeadDim);
  delta.decay_per_channel = false;
  config.conv_kernel = text.integer("linear_conv_kernel_dim", 2, kMaxConvKernel);
  if (text.states("output_gate_type")) {
    const std::string gate = text.text("output_gate_type", R"("silu", "swish" or "sigmoid")");
    if (gate == "sigmoid") {
      config.output_gate = ops::NormGate::sigmoid;
    } else if (gate != "silu" && gate != "swish") {
      text.refuse("output_gate_type", R"("silu", "swish" or "sigmoid")", ErrorKind::unsupported);
    }
  }
}

// Refuses a scaled rotation under `key`, in the spellings of both generations: rope_type or type, or a factor without either.
void refuse_scaling(const Section& section, std::string_view key) {
  if (!section.states(key)) return;
  const Section rope = section.section(key);
  for (const std::string_view type : {"rope_type", "type"}) {
    if (rope.states(type) && rope.text(type, "\"default\"") != kPlainRope)
      rope.refuse(type, "\"default\" (scaled rotation is not supported)", ErrorKind::unsupported);
  }
  for (const std::string_view factor : {"factor", "attention_factor"}) {
    if (rope.states(factor)) rope.refuse(factor, "none (scaled rotation is not supported)", ErrorKind::unsupported);
  }
}

// A value that files of newer libraries state at both levels.
float read_rope_value(const Section& text, bool parameters, std::string_view key) {
  if (!parameters) return text.positive(key);
  const Section rope = text.section("rope_parameters");
  if (!rope.has(key)) return text.positive(key);
  const float value = rope.positive(key);
  if (text.states(key) && text.positive(key) != value) text.refuse(key, fmt::format("the value of rope_parameters, {}", value));
  return value;
}

void read_rope(const Section& text, QwenConfig& config) {
  refuse_scaling(text, "rope_scaling");
  refuse_scaling(text, "rope_parameters");
  const bool parameters = text.states("rope_parameters");
  config.rope_theta = read_rope_value(text, parameters, "rope_theta");
  const float factor = read_rope_value(text, parameters, "partial_rotary_factor");
  // The factor is a float32: 160 * 0.7F is a little less than 112.
  config.rotary = static_cast<int64_t>(static_cast<double>(config.attention.size) * static_cast<double>(factor) + 1e-3);
  if (factor > 1.0F || config.rotary < 2 || config.rotary % 2 != 0) {
    fail(ErrorKind::bad_checkpoint, text.place(),
         "{}: wanted a factor that makes an even number of rotated channels of head_dim {}, found {}",
         text.name("partial_rotary_factor"), config.attention.size, factor);
  }
}

void read_attention(const Section& text, QwenConfig& config) {
  ops::GqaShape& attention = config.attention;
  attention.heads = text.integer("num_attention_heads", 1, kMaxHeads);
  attention.kv_heads = text.integer("num_key_value_heads", 1, kMaxHeads);
  if (attention.heads % attention.kv_heads != 0)
    text.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads, {}", attention.heads));
  attention.size = text.integer("head_dim", 1, kMaxHeadDim);
  if (text.has("attention_bias") && text.boolean("attention_bias"))
    text.refuse("attention_bias", "false (no linear layer has a bias)", ErrorKind::unsupported);
  if (text.states("attn_output_gate") && !text.boolean("attn_output_gate"))
    text.refuse("attn_output_gate", "true (attention without its gate is not supported)", ErrorKind::unsupported);
  if (text.states("layer_scale")) {
    const Json& scale = text.at("layer_scale", "");
    if (!(scale.is_boolean() && !scale.get<bool>()))
      text.refuse("layer_scale", "null or false (scaled sublayers are not supported)", ErrorKind::unsupported);
  }
  if (text.states("use_sliding_window") && text.boolean("use_sliding_window"))
    text.refuse("use_sliding_window", "false (attention over a window is not supported)", ErrorKind::unsupported);
  read_rope(text, config);
}

std::set<int64_t> dense_layers(const Section& text) {
  std::set<int64_t> dense;
  if (!text.states("mlp_only_layers")) return dense;
  const Json& list = text.at("mlp_only_layers", "");
  if (!list.is_array()) text.refuse("mlp_only_layers", "a list of layer indices");
  for (const Json& entry : list) {
    if (!entry.is_number_integer() || entry.get<int64_t>() < 0)
      text.refuse("mlp_only_layers", "a list of layer indices from 0");
    dense.insert(entry.get<int64_t>());
  }
  return dense;
}

void read_mlp(const Section& text, QwenConfig& config) {
  if (text.text("hidden_act", "\"silu\"") != "silu") text.refuse("hidden_act", "\"silu\"", ErrorKind::unsupported);
  config.activation.kind = ops::Activation::Kind::silu;
  config.moe_layers.assign(static_cast<size_t>(config.layer_count), false);
  const bool next = is_next(config.model_type);
  const bool moe = next || text.states("num_experts");
  if (moe) config.experts = text.integer("num_experts", 0, kMaxExperts);
  if (config.experts > 0) {
    config.router.score = ops::RouterRule::Score::softmax;
    config.router.experts_per_token = text.integer("num_experts_per_tok", 1, kMaxExperts);
    if (config.router.experts_per_token > config.experts)
      text.refuse("num_experts_per_tok", fmt::format("at most num_experts, {}", config.experts));
    config.router.renormalize = !(next || text.states("norm_topk_prob")) || text.boolean("norm_topk_prob");
    config.moe_intermediate_size = text.integer("moe_intermediate_size", 1, kMaxWidth);
    config.shared_intermediate_size = text.integer("shared_expert_intermediate_size", 1, kMaxWidth);
    const std::set<int64_t> dense = dense_layers(text);
    const int64_t step = text.states("decoder_sparse_step") ? text.integer("decoder_sparse_step", 1, kMaxLayers) : 1;
    for (int64_t l = 0; l < config.layer_count; ++l) {
      config.moe_layers[static_cast<size_t>(l)] = !dense.contains(l) && (l + 1) % step == 0;
    }
  }
  if (std::ranges::find(config.moe_layers, false) != config.moe_layers.end())
    config.intermediate_size = text.integer("intermediate_size", 1, kMaxDenseWidth);
}

}  // namespace

bool is_qwen_type(std::string_view model_type) {
  constexpr std::array<std::string_view, 5> kTypes = {"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text",
                                                      "qwen3_5_moe_text"};
  return std::ranges::find(kTypes, model_type) != kTypes.end();
}

QwenConfig parse_qwen_config(const Json& json, std::string_view place) {
  const Section top(json, "", place);
  QwenConfig config;
  config.model_type = top.text("model_type", kSupportedModels);
  if (!is_qwen_type(config.model_type)) top.refuse("model_type", kSupportedModels, ErrorKind::unsupported);
  config.nested = top.states("text_config");
  if (config.nested && config.model_type.ends_with("_text"))
    top.refuse("model_type", "the wrapper's type, without _text, beside text_config", ErrorKind::unsupported);
  const Section text = config.nested ? top.section("text_config") : top;
  if (config.nested && text.has("model_type")) {
    const std::string wanted = fmt::format("\"{}_text\"", config.model_type);
    if (fmt::format("\"{}\"", text.text("model_type", wanted)) != wanted)
      text.refuse("model_type", wanted, ErrorKind::unsupported);
  }
  config.interleaved = is_next(config.model_type);

  config.hidden_size = text.integer("hidden_size", 1, kMaxWidth);
  config.layer_count = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.rms_norm_eps = text.positive("rms_norm_eps");
  // In the wrapper it may stand at either level.
  const bool outer = config.nested && !text.states("tie_word_embeddings");
  config.tie_word_embeddings = (outer ? top : text).boolean("tie_word_embeddings");
  if (config.nested && !outer && top.states("tie_word_embeddings") &&
      top.boolean("tie_word_embeddings") != config.tie_word_embeddings)
    top.refuse("tie_word_embeddings", fmt::format("text_config's value, {}", config.tie_word_embeddings));
  config.max_context = text.integer("max_position_embeddings", 1, kMaxTokens);
  for (const Section* section : {&text, &top}) {
    if (!section->states("eos_token_id")) continue;
    for (const int64_t id : section->eos_ids(config.vocab_size)) {
      if (std::ranges::find(config.eos_ids, id) == config.eos_ids.end()) config.eos_ids.push_back(id);
    }
  }

  read_layer_types(text, config);
  read_delta(text, config);
  read_attention(text, config);
  read_mlp(text, config);

  if (text.states("mamba_ssm_dtype") && text.text("mamba_ssm_dtype", "\"float32\"") != "float32")
    config.notes.push_back(
        fmt::format("mamba_ssm_dtype is \"{}\": the recurrent state is kept in float32", text.text("mamba_ssm_dtype", "")));
  for (const Section* section : {&text, &top}) {
    if (section->states("quantization_config")) config.quantization = section->at("quantization_config", "");
  }
  return config;
}

std::string QwenConfig::canonical_name(std::string_view stored) const {
  constexpr std::string_view kWrapped = "model.language_model.";
  if (stored.starts_with(kWrapped)) return "model." + std::string(stored.substr(kWrapped.size()));
  constexpr std::string_view kConverted = "language_model.";
  if (stored.starts_with(kConverted)) stored.remove_prefix(kConverted.size());
  return std::string(stored);
}

bool QwenConfig::is_vision(std::string_view name) const {
  return name.starts_with("model.visual.") || name.starts_with("visual.") || name.starts_with("vision_tower.");
}

StateLayout QwenConfig::state_layout(LayerRange layers) const {
  StateLayout layout(layers);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    if (full_at(layer)) {
      layout.add_page_layer(layer, {{"k", kv_width()}, {"v", kv_width()}});
    } else {
      const Shape keys{conv_kernel - 1, key_width()};
      layout.add_slot_layer(layer, {{std::string(kRecurrentState), {delta.value_heads, delta.key_size, delta.value_size}},
                                    {"conv_q", keys},
                                    {"conv_k", keys},
                                    {"conv_v", {conv_kernel - 1, value_width()}}});
    }
  }
  return layout;
}

int64_t QwenConfig::mixer_elements(LayerIndex layer) const {
  if (full_at(layer)) return 8 * query_width() + 4 * kv_width();
  return 6 * key_width() + 7 * value_width() + 6 * delta.value_heads;
}

int64_t QwenConfig::mlp_elements(LayerIndex layer) const {
  if (!is_moe(layer)) return 3 * intermediate_size;
  return experts + 2 * router.experts_per_token + 1 + 4 * hidden_size + 1 + 3 * shared_intermediate_size;
}

int64_t QwenConfig::widest_input() const {
  return std::max({hidden_size, value_width(), query_width(), intermediate_size, shared_intermediate_size});
}

ModelConfig::MixerOperations QwenConfig::mixer_operations(LayerIndex layer) const {
  if (full_at(layer)) return {0, 4 * query_width()};
  return {delta.value_heads * 7 * delta.key_size * delta.value_size, 0};
}

Json QwenConfig::describe() const {
  Json json = {{"gdn",
                {{"key_heads", delta.key_heads},
                 {"value_heads", delta.value_heads},
                 {"key_head_dim", delta.key_size},
                 {"value_head_dim", delta.value_size},
                 {"conv_kernel", conv_kernel},
                 {"interleaved_projections", interleaved}}},
               {"attention",
                {{"heads", attention.heads},
                 {"kv_heads", attention.kv_heads},
                 {"head_dim", attention.size},
                 {"rotary_dim", rotary},
                 {"rope_theta", rope_theta}}},
               {"activation", "silu"}};
  json["intermediate_size"] = intermediate_size > 0 ? Json(intermediate_size) : Json();
  if (experts > 0) {
    json["moe"] = {{"experts", experts},
                   {"experts_per_token", router.experts_per_token},
                   {"intermediate_size", moe_intermediate_size},
                   {"shared_intermediate_size", shared_intermediate_size},
                   {"renormalize", router.renormalize}};
  }
  return json;
}

std::string QwenConfig::summary() const {
  std::string out = fmt::format("GDN {} key and {} value heads of {} and {}, attention {} heads on {} of {} ({} rotated)",
                                delta.key_heads, delta.value_heads, delta.key_size, delta.value_size, attention.heads,
                                attention.kv_heads, attention.size, rotary);
  if (experts > 0)
    out += fmt::format(", {} experts ({} a token) of width {} and a shared one of {}", experts, router.experts_per_token,
                       moe_intermediate_size, shared_intermediate_size);
  return out;
}

}  // namespace weft
