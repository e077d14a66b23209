#include "model/families/kimi_config.h"

#include <algorithm>
#include <string_view>

#include "model/config_section.h"

namespace weft {
namespace {

// The decay gate's range for which the 16-row chunked form stays inside float32 (K3 spec 1.5).
constexpr double kLowestGate = -5.0;

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> heads) {
  return std::ranges::any_of(heads, [&](std::string_view head) { return name.starts_with(head); });
}

// The two 1-based lists -> is_kda. Entries above L are ignored (ruling R3); everything else must be a partition of 1..L.
void read_layer_lists(const Section& linear, KimiConfig& config) {
  enum : uint8_t { none, kda, full };
  std::vector<uint8_t> kind(static_cast<size_t>(config.layer_count), none);
  int64_t ignored = 0;
  const auto read = [&](std::string_view key, uint8_t mark) {
    const Json& list = linear.at(key, "a list of 1-based layer numbers");
    if (!list.is_array()) linear.refuse(key, "a list of 1-based layer numbers");
    for (const Json& entry : list) {
      if (!entry.is_number_integer() || entry.get<int64_t>() < 1)
        linear.refuse(key, fmt::format("layer numbers from 1 (entry {})", shown(entry)));
      const int64_t number = entry.get<int64_t>();
      config.listed_layers = std::max(config.listed_layers, number);
      if (number > config.layer_count) {
        ++ignored;
        continue;
      }
      uint8_t& slot = kind[static_cast<size_t>(number - 1)];
      if (slot == mark) linear.refuse(key, fmt::format("each layer once (layer {} is listed twice)", number));
      if (slot != none)
        linear.refuse(key, fmt::format("each layer in one of kda_layers and full_attn_layers (layer {} is in both)", number));
      slot = mark;
    }
  };
  read("kda_layers", kda);
  read("full_attn_layers", full);
  for (size_t l = 0; l < kind.size(); ++l) {
    if (kind[l] == none)
      linear.refuse("kda_layers",
                    fmt::format("each layer in one of kda_layers and full_attn_layers (layer {} is in neither)", l + 1));
    config.is_kda.push_back(kind[l] == kda);
  }
  if (ignored > 0)
    config.notes.push_back(fmt::format("num_hidden_layers is {}: {} entries of the layer lists above it are ignored",
                                       config.layer_count, ignored));
}

void read_kda(const Section& linear, bool k3, KimiConfig& config) {
  config.kda_heads = linear.integer("num_heads", 1, kMaxHeads);
  config.kda_head_dim = linear.integer("head_dim", 1, kMaxHeadDim);
  config.conv_kernel = linear.integer("short_conv_kernel_size", 2, kMaxConvKernel);
  if (k3) (void)linear.at("gate_lower_bound", "a number in [-5, 0), or null for the softplus decay");
  if (linear.states("gate_lower_bound")) {
    const Json& value = linear.at("gate_lower_bound", "");
    if (!value.is_number()) linear.refuse("gate_lower_bound", "a number in [-5, 0)");
    const double bound = value.get<double>();
    if (!(bound >= kLowestGate && bound < 0.0))
      linear.refuse("gate_lower_bound", "a number in [-5, 0)", ErrorKind::unsupported);
    config.gate_lower_bound = static_cast<float>(bound);
  }
  config.full_rank_gate = (k3 || linear.has("use_full_rank_gate")) && linear.boolean("use_full_rank_gate");
}

void read_mla(const Section& text, bool k3, KimiConfig& config) {
  config.mla.heads = text.integer("num_attention_heads", 1, kMaxHeads);
  const int64_t kv_heads = text.integer("num_key_value_heads", 1, kMaxHeads);
  if (kv_heads != config.mla.heads)
    text.refuse("num_key_value_heads", fmt::format("num_attention_heads, {}", config.mla.heads), ErrorKind::unsupported);
  config.mla.nope = text.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  config.mla.rope = text.integer("qk_rope_head_dim", 1, kMaxHeadDim);
  config.mla.value = text.integer("v_head_dim", 1, kMaxHeadDim);
  config.mla.latent = text.integer("kv_lora_rank", 1, kMaxWidth);
  if (k3) (void)text.at("q_lora_rank", "an integer, or null for a plain q_proj");
  if (text.states("q_lora_rank")) config.q_lora_rank = text.integer("q_lora_rank", 1, kMaxWidth);
  config.mla_output_gate = (k3 || text.has("mla_use_output_gate")) && text.boolean("mla_use_output_gate");
  if (!text.boolean("mla_use_nope"))
    text.refuse("mla_use_nope", "true (rotary position embedding is not supported)", ErrorKind::unsupported);
}

void read_activation(const Section& text, KimiConfig& config) {
  const std::string act = text.text("hidden_act", "\"situ\" or \"silu\"");
  if (act == "silu") {
    config.activation.kind = ops::Activation::Kind::silu;
    return;
  }
  if (act != "situ") text.refuse("hidden_act", "\"situ\" or \"silu\"", ErrorKind::unsupported);
  config.activation.kind = ops::Activation::Kind::situ;
  if (text.states("activation_situ_beta"))
    config.activation.beta = text.positive("activation_situ_beta");
  else
    config.notes.emplace_back("activation_situ_beta is absent: 1.0, as in the published implementation");
  if (text.states("activation_situ_linear_beta"))
    config.activation.linear_beta = text.positive("activation_situ_linear_beta");
  else
    config.notes.emplace_back("activation_situ_linear_beta is absent: the up branch is not bounded");
}

void read_moe(const Section& text, bool k3, KimiConfig& config) {
  config.intermediate_size = text.integer("intermediate_size", 1, kMaxDenseWidth);
  config.experts = text.integer("num_experts", 0, kMaxExperts);
  config.moe_layers.assign(static_cast<size_t>(config.layer_count), false);
  if (config.experts == 0) return;
  config.router.experts_per_token = text.integer("num_experts_per_token", 1, kMaxExperts);
  if (config.router.experts_per_token > config.experts)
    text.refuse("num_experts_per_token", fmt::format("at most num_experts, {}", config.experts));
  config.shared_experts = text.integer("num_shared_experts", 0, 64);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1, kMaxWidth);
  const int64_t first_dense = text.integer("first_k_dense_replace", 0, kMaxLayers);
  const int64_t every = text.integer("moe_layer_freq", 1, kMaxLayers);
  for (int64_t l = first_dense; l < config.layer_count; ++l) config.moe_layers[static_cast<size_t>(l)] = l % every == 0;
  config.router.renormalize = text.boolean("moe_renormalize");
  config.router.scale = text.positive("routed_scaling_factor");
  if (text.text("moe_router_activation_func", "\"sigmoid\"") != "sigmoid")
    text.refuse("moe_router_activation_func", "\"sigmoid\"", ErrorKind::unsupported);
  for (const std::string_view key : {"num_expert_group", "topk_group"})
    if (text.integer(key, 1, kMaxExperts) != 1)
      text.refuse(key, "1 (grouped routing is not supported)", ErrorKind::unsupported);
  if (text.has("topk_method") && text.text("topk_method", "\"noaux_tc\"") != "noaux_tc")
    text.refuse("topk_method", "\"noaux_tc\"", ErrorKind::unsupported);
  if (k3) (void)text.at("routed_expert_hidden_size", "an integer, or null for experts on hidden_size");
  if (text.states("routed_expert_hidden_size")) {
    config.latent_size = text.integer("routed_expert_hidden_size", 1, kMaxWidth);
    config.latent_norm = text.boolean("latent_moe_use_norm");
  } else if (text.has("latent_moe_use_norm") && text.boolean("latent_moe_use_norm")) {
    text.refuse("latent_moe_use_norm", "routed_expert_hidden_size beside it");
  }
}

}  // namespace

KimiConfig parse_kimi_config(const Json& json, std::string_view place) {
  const Section top(json, "", place);
  KimiConfig config;
  config.model_type = top.text("model_type", kSupportedModels);
  if (config.model_type != "kimi_k3" && config.model_type != "kimi_linear")
    top.refuse("model_type", kSupportedModels, ErrorKind::unsupported);
  config.nested = config.model_type == "kimi_k3";
  if (!config.nested && top.has("text_config"))
    top.refuse("model_type", "\"kimi_k3\" beside text_config", ErrorKind::unsupported);
  const Section text = config.nested ? top.section("text_config") : top;
  if (config.nested && text.text("model_type", "\"kimi_linear\"") != "kimi_linear")
    text.refuse("model_type", "\"kimi_linear\"", ErrorKind::unsupported);
  // A flat configuration with Attention Residuals is K3's text model (K3 spec 7).
  const bool k3 = config.nested || text.has("attn_res_block_size");

  config.hidden_size = text.integer("hidden_size", 1, kMaxWidth);
  config.layer_count = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.rms_norm_eps = text.positive("rms_norm_eps");
  config.tie_word_embeddings = text.boolean("tie_word_embeddings");
  if (config.nested && top.has("tie_word_embeddings") && top.boolean("tie_word_embeddings") != config.tie_word_embeddings)
    top.refuse("tie_word_embeddings", fmt::format("text_config's value, {}", config.tie_word_embeddings));
  const std::string_view context_key =
      text.has("max_position_embeddings") || !text.has("model_max_length") ? "max_position_embeddings" : "model_max_length";
  if (!text.has(context_key))
    fail(ErrorKind::bad_checkpoint, place, "{}: missing (and no {} either), wanted the longest context in tokens",
         text.name("max_position_embeddings"), "model_max_length");
  config.max_context = text.integer(context_key, 1, kMaxTokens);
  config.eos_ids = (top.has("eos_token_id") ? top : text).eos_ids(config.vocab_size);
  if (config.nested && top.has("eos_token_id") && text.has("eos_token_id") && text.eos_ids(config.vocab_size) != config.eos_ids)
    text.refuse("eos_token_id", fmt::format("the top level's value, {}", shown(json.at("eos_token_id"))));
  if (text.has("attention_bias") && text.boolean("attention_bias"))
    text.refuse("attention_bias", "false (no linear layer has a bias)", ErrorKind::unsupported);

  const Section linear = text.section("linear_attn_config");
  read_layer_lists(linear, config);
  read_kda(linear, k3, config);
  read_mla(text, k3, config);
  read_activation(text, config);
  read_moe(text, k3, config);

  if (k3) (void)text.at("attn_res_block_size", "an integer, or null for plain residuals");
  if (text.states("attn_res_block_size")) config.residual_block = text.integer("attn_res_block_size", 1, kMaxLayers);

  if (text.states("num_nextn_predict_layers")) {
    const int64_t heads = text.integer("num_nextn_predict_layers", 0, kMaxLayers);
    if (heads > 0)
      config.notes.push_back(
          fmt::format("num_nextn_predict_layers is {}: layers of multi-token prediction are not used", heads));
  }

  if (text.states("quantization_config")) config.quantization = text.at("quantization_config", "");
  if (config.nested && top.states("quantization_config")) {
    const Json& outer = top.at("quantization_config", "");
    // Unordered comparison: the same rules in another key order are equal.
    // A conversion of MLX states its own beside what the original was.
    if (!config.quantization.is_null() && !top.states("quantization") &&
        nlohmann::json(outer) != nlohmann::json(config.quantization))
      top.refuse("quantization_config", "the same as text_config.quantization_config");
    config.quantization = outer;
  }
  return config;
}

std::string KimiConfig::canonical_name(std::string_view stored) const {
  constexpr std::string_view kPrefix = "language_model.";
  if (stored.starts_with(kPrefix)) stored.remove_prefix(kPrefix.size());
  std::string modern(stored);
  // Spellings of older conversions (K3 spec 2.1).
  if (stored.ends_with("_weight")) {
    for (const std::string_view stem : {"self_attention_res", "mlp_res", "output_attn_res"})
      for (const std::string_view kind : {"proj", "norm"}) {
        const std::string old = fmt::format("{}.{}_weight", stem, kind);
        if (stored.ends_with(old))
          return fmt::format("{}{}_{}.weight", stored.substr(0, stored.size() - old.size()), stem, kind);
      }
  }
  // Spellings of MLX, under which a module's other tensors (".scales") come too.
  const auto respell = [&](std::string_view from, std::string_view to) {
    if (const size_t at = modern.find(from); at != std::string::npos) modern.replace(at, from.size(), to);
  };
  for (const std::string_view module : {"switch_mlp.", "gate.", "shared_experts.", "routed_expert_", "e_score_correction_bias"})
    respell(fmt::format(".mlp.{}", module), fmt::format(".block_sparse_moe.{}", module));
  for (const char name : {'q', 'k', 'v'}) respell(fmt::format(".{}_conv.conv.", name), fmt::format(".{}_conv1d.", name));
  respell(".self_attn.kv_a_proj.", ".self_attn.kv_a_proj_with_mqa.");
  respell(".self_attn.kv_a_norm.", ".self_attn.kv_a_layernorm.");
  respell(".block_sparse_moe.e_score_correction_bias", ".block_sparse_moe.gate.e_score_correction_bias");
  return modern;
}

bool KimiConfig::is_vision(std::string_view name) const {
  return starts_with_any(name, {"vision_tower.", "mm_projector.", "vision_model.", "multi_modal_projector."});
}

bool KimiConfig::is_mtp(std::string_view name) const { return starts_with_any(name, {"model.mtp", "mtp"}); }

StateLayout KimiConfig::state_layout(LayerRange layers) const {
  StateLayout layout(layers);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    if (kda_at(layer)) {
      const Shape history{conv_kernel - 1, kda_width()};
      layout.add_slot_layer(
          layer,
          {{"S", {kda_heads, kda_head_dim, kda_head_dim}}, {"conv_q", history}, {"conv_k", history}, {"conv_v", history}});
    } else {
      layout.add_page_layer(layer, {{"latent", mla.latent}, {"pe", mla.rope}});
    }
  }
  return layout;
}

int64_t KimiConfig::mixer_elements(LayerIndex layer) const {
  if (kda_at(layer)) return 11 * kda_width() + 2 * kda_head_dim + kda_heads;
  const int64_t query = 2 * q_lora_rank.value_or(0) + mla.heads * (mla.nope + mla.rope);
  const int64_t cached = 2 * mla.latent + mla.rope;
  return query + cached + mla.heads * (2 * mla.latent + 3 * mla.value);
}

int64_t KimiConfig::mlp_elements(LayerIndex layer) const {
  if (!is_moe(layer)) return 3 * intermediate_size;
  const int64_t chosen = router.experts_per_token;
  const int64_t always = experts + 2 * chosen + 1 + 2 * expert_width() + hidden_size;
  const int64_t shared = 3 * shared_experts * moe_intermediate_size;
  return always + std::max(shared, expert_width() + hidden_size);
}

int64_t KimiConfig::widest_input() const {
  return std::max({hidden_size, kda_width(), mla.heads * mla.value, q_lora_rank.value_or(0), intermediate_size,
                   shared_experts * moe_intermediate_size});
}

ModelConfig::MixerOperations KimiConfig::mixer_operations(LayerIndex layer) const {
  if (kda_at(layer)) return {kda_heads * 7 * kda_head_dim * kda_head_dim, 0};
  return {0, mla.heads * 2 * (2 * mla.latent + mla.rope)};
}

Json KimiConfig::describe() const {
  Json json = {{"kda", {{"heads", kda_heads}, {"head_dim", kda_head_dim}, {"conv_kernel", conv_kernel}}},
               {"mla",
                {{"heads", mla.heads},
                 {"qk_nope_head_dim", mla.nope},
                 {"qk_rope_head_dim", mla.rope},
                 {"v_head_dim", mla.value},
                 {"kv_lora_rank", mla.latent},
                 {"output_gate", mla_output_gate}}},
               {"activation", activation.kind == ops::Activation::Kind::situ ? "situ" : "silu"},
               {"intermediate_size", intermediate_size}};
  json["kda"]["gate_lower_bound"] = gate_lower_bound ? Json(*gate_lower_bound) : Json();
  json["kda"]["full_rank_gate"] = full_rank_gate;
  json["mla"]["q_lora_rank"] = q_lora_rank ? Json(*q_lora_rank) : Json();
  if (experts > 0) {
    json["moe"] = {{"experts", experts},
                   {"experts_per_token", router.experts_per_token},
                   {"shared_experts", shared_experts},
                   {"intermediate_size", moe_intermediate_size},
                   {"routed_scaling_factor", router.scale},
                   {"renormalize", router.renormalize}};
    json["moe"]["latent_size"] = latent_size ? Json(*latent_size) : Json();
  }
  json["residual_block"] = residual_block ? Json(*residual_block) : Json();
  return json;
}

std::string KimiConfig::summary() const {
  std::string out =
      fmt::format("KDA {} heads of {}, MLA {} heads, latent {} + {}", kda_heads, kda_head_dim, mla.heads, mla.latent, mla.rope);
  if (experts > 0)
    out += fmt::format(", {} experts ({} a token, {} shared) of width {}", experts, router.experts_per_token, shared_experts,
                       moe_intermediate_size);
  if (latent_size) out += fmt::format(" on {}", *latent_size);
  if (residual_block) out += fmt::format(", residual blocks of {} layers", *residual_block);
  return out;
}

}  // namespace weft
