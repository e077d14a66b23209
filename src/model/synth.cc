#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/new_folder.h"
#include "base/plural.h"
#include "formats/safetensors.h"
#include "model/families/kimi_config.h"
#include "model/model_config.h"
#include "model/param_table.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "synth";
constexpr int64_t kPublishedHidden = 7168;
constexpr size_t kChunk = 1 << 20;  // bytes generated at a time

// K3 spec 1.1 to 1.4.
constexpr const char* kK3Config = R"({
 "architectures": ["KimiK3ForConditionalGeneration"],
 "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586, "ignore_index": -100,
 "image_placeholder": "<|kimi_image_placeholder|>", "media_placeholder_token_id": 163605,
 "model_type": "kimi_k3", "pad_token_id": 163839,
 "text_config": {
  "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "architectures": ["KimiLinearForCausalLM"],
  "attn_res_block_size": 12, "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586,
  "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 33792, "kv_lora_rank": 512, "latent_moe_use_norm": true,
  "linear_attn_config": {
   "full_attn_layers": [], "gate_lower_bound": -5.0, "head_dim": 128, "kda_layers": [], "num_heads": 96,
   "short_conv_kernel_size": 4, "use_full_rank_gate": true
  },
  "max_position_embeddings": 1048576, "mla_use_nope": true, "mla_use_output_gate": true, "model_type": "kimi_linear",
  "moe_intermediate_size": 3072, "moe_layer_freq": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
  "num_attention_heads": 96, "num_expert_group": 1, "num_experts": 896, "num_experts_per_token": 16,
  "num_hidden_layers": 93, "num_key_value_heads": 96, "num_nextn_predict_layers": 0, "num_shared_experts": 2,
  "pad_token_id": 163839, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {
   "config_groups": {"group_0": {
    "format": "mxfp4-pack-quantized", "input_activations": null, "output_activations": null, "targets": ["Linear"],
    "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32, "num_bits": 4,
     "observer": "minmax", "scale_dtype": "torch.uint8", "strategy": "group", "symmetric": true, "type": "float",
     "zp_dtype": null}
   }},
   "format": "mxfp4-pack-quantized", "global_compression_ratio": null,
   "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
    "re:.*vision_tower.*", "re:.*mm_projector.*"],
   "kv_cache_scheme": null, "quant_method": "compressed-tensors", "quantization_status": "compressed"
  },
  "rms_norm_eps": 1e-05, "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0, "temperature": 1.0,
  "tie_word_embeddings": false, "top_k": 50, "top_p": 1.0, "topk_group": 1, "topk_method": "noaux_tc", "use_cache": true,
  "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840
 },
 "tie_word_embeddings": false,
 "vision_config": {"mm_hidden_size": 1024, "patch_size": 14, "text_hidden_size": 7168, "vt_hidden_size": 1024,
  "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27}
})";

// Qwen3-Next spec 1.1 and 1.2.
constexpr const char* kQwen3NextConfig = R"({
 "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
 "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
 "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
 "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
 "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
 "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
 "num_key_value_heads": 2, "output_router_logits": false, "pad_token_id": 151643, "partial_rotary_factor": 0.25,
 "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
 "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
 "vocab_size": 151936
})";

Json preset_config(std::string_view preset) {
  if (preset == "k3") return parse_json(kK3Config, kPlace, ErrorKind::internal);
  if (preset == "qwen3-next") return parse_json(kQwen3NextConfig, kPlace, ErrorKind::internal);
  fail(ErrorKind::bad_input, kPlace, "--preset: wanted k3 or qwen3-next, found '{}'", preset);
}

// The object with the keys of the text model.
Json& text_of(Json& config) { return config.contains("text_config") ? config.at("text_config") : config; }

void apply_setting(Json& text, const std::string& setting, std::vector<std::string>& changed) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(ErrorKind::bad_input, kPlace, "--set: wanted key=value, found '{}'", setting);
  const std::string key = setting.substr(0, equals);
  const std::string value = setting.substr(equals + 1);
  Json* object = &text;
  std::string leaf = key;
  for (size_t dot = leaf.find('.'); dot != std::string::npos; dot = leaf.find('.')) {
    const auto next = object->find(leaf.substr(0, dot));
    if (next == object->end() || !next->is_object()) fail(ErrorKind::bad_input, kPlace, "--set {}: no such key", key);
    object = &*next;
    leaf = leaf.substr(dot + 1);
  }
  const auto found = object->find(leaf);
  if (found == object->end())
    fail(ErrorKind::bad_input, kPlace, "--set {}: no such key in the preset's text configuration", key);
  // A bare word is a string, everything else JSON.
  Json parsed = Json::parse(value, nullptr, false);
  if (parsed.is_discarded()) parsed = value;
  *found = std::move(parsed);
  changed.push_back(key);
}

// FNV-1a-64 of a tensor's name, so that a tensor's values do not depend on the others of the checkpoint.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

// splitmix64, a counter-based stream.
class Random {
 public:
  Random(std::string_view name, uint64_t seed) : state_(hash_name(name) ^ (seed * 0x9e3779b97f4a7c15ULL)) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }  // [0, 1)
  // The sum of four uniform values, scaled to deviation 1: bounded by 3.5 deviations.
  float normal() {
    const uint64_t b = bits();
    const auto sum = static_cast<float>((b & 0xffff) + ((b >> 16) & 0xffff) + ((b >> 32) & 0xffff) + (b >> 48));
    return (sum * 0x1p-16F - 2.0F) * 1.7320508F;
  }

 private:
  uint64_t state_;
};

enum class Fill : uint8_t { normal, ones, a_log, small, codes, scales };

struct Planned {
  TensorSpec spec;
  Fill fill = Fill::normal;
  float deviation = 1.0F;
  int64_t live = 0;          // a_log: values before the zero tail
  uint8_t scale_byte = 127;  // scales
};

class Writer {
 public:
  Writer(const SynthOptions& options, const std::function<void(int64_t, int64_t)>& progress)
      : options_(options),
        progress_(progress),
        json_(synth_config(options)),
        shared_config_(parse_model_config(json_, kPlace)),
        config_(*shared_config_) {}

  SynthReport run() {
    NewFolder folder(options_.out, kPlace);
    const std::vector<ParamSpec> table = config_.params();
    const bool vision = json_.contains("vision_config");
    files_ = config_.layer_count + 1 + (vision ? 2 : 0);
    for (const ParamSpec& p : table) total_ += planned_bytes(p);
    if (vision)
      for (const Planned& p : vision_tower()) total_ += bytes_of(p.spec);
    if (vision)
      for (const Planned& p : projector()) total_ += bytes_of(p.spec);
    if (!options_.sparse) folder.require_free(total_);

    for (int64_t l = 0; l < config_.layer_count; ++l) {
      std::vector<Planned> tensors;
      for (const ParamSpec& p : table)
        if (p.owner == Owner::layer && p.layer == LayerIndex(l)) plan(p, tensors);
      write(l + 1, tensors);
    }
    std::vector<Planned> ends;
    for (const ParamSpec& p : table)
      if (p.owner != Owner::layer) plan(p, ends);
    write(config_.layer_count + 1, ends);
    if (vision) {
      write(files_ - 1, vision_tower());
      write(files_, projector());
    }
    index_ += "\n }\n}\n";
    report_.shards = files_;
    const std::string head =
        fmt::format("{{\n \"metadata\": {{\n  \"total_size\": {}\n }},\n \"weight_map\": {{", report_.data_bytes);
    write_file_atomic(options_.out / "model.safetensors.index.json", head + index_);
    write_file_atomic(options_.out / "config.json", json_.dump(2) + "\n");
    const Json generation = {{"bos_token_id", json_.at("bos_token_id")},
                             {"eos_token_id", json_.at("eos_token_id")},
                             {"pad_token_id", json_.at("pad_token_id")},
                             {"temperature", 1.0},
                             {"top_p", 0.95}};
    write_file_atomic(options_.out / "generation_config.json", generation.dump(2) + "\n");
    folder.keep();
    return report_;
  }

 private:
  static int64_t bytes_of(const TensorSpec& spec) { return spec.shape.elements() * size_of(spec.dtype); }
  [[nodiscard]] bool packs(const ParamSpec& p) const {
    return p.role.starts_with("moe.expert.") && !config_.quantization.is_null();
  }
  // A_log is padded to the head size where it is shorter (K3 spec 2.5).
  [[nodiscard]] Shape stored_shape(const ParamSpec& p) const {
    const auto* const kimi = dynamic_cast<const KimiConfig*>(&config_);
    if (p.storage != Storage::prefix || kimi == nullptr) return p.shape;
    return Shape{std::max(p.shape.elements(), kimi->kda_head_dim)};
  }
  [[nodiscard]] int64_t planned_bytes(const ParamSpec& p) const {
    const int64_t elements = stored_shape(p).elements();
    return p.copies * (packs(p) ? elements / 2 + elements / 32 : elements * size_of(p.dtype));
  }

  void plan(const ParamSpec& p, std::vector<Planned>& out) const {
    const std::string prefix = config_.name_prefix();
    for (int64_t e = 0; e < p.copies; ++e) {
      const std::string name = prefix + expert_name(p, e);
      if (packs(p)) {
        const int64_t rows = p.shape[0];
        const int64_t in = p.shape[1];
        if (in % 32 != 0)
          fail(ErrorKind::bad_input, kPlace, "{}: wanted an input width that is a multiple of 32 for MXFP4, found {}", p.name,
               in);
        // The root mean square of the eight E2M1 magnitudes is 2.93.
        const int exponent = static_cast<int>(std::lround(std::log2(1.0 / (2.93 * std::sqrt(static_cast<double>(in))))));
        out.push_back({{name + "_packed", DType::u8, {rows, in / 2}}, Fill::codes, 0.0F, 0, 0});
        out.push_back(
            {{name + "_scale", DType::u8, {rows, in / 32}}, Fill::scales, 0.0F, 0, static_cast<uint8_t>(127 + exponent)});
        continue;
      }
      Planned tensor{{name, p.dtype, stored_shape(p)}};
      if (p.role.ends_with("norm")) {
        tensor.fill = config_.zero_centred_norm(p.role) ? Fill::small : Fill::ones;
      } else if (p.role.ends_with(".a_log")) {
        tensor.fill = Fill::a_log;
        tensor.live = p.shape.elements();
      } else if (p.role.ends_with(".dt_bias") || p.role == "moe.bias") {
        tensor.fill = Fill::small;
      } else if (p.role != "embed") {
        tensor.deviation = 1.0F / std::sqrt(static_cast<float>(p.shape.last()));
      }
      out.push_back(std::move(tensor));
    }
  }

  // K3 spec 10: 165 tensors of the tower, 3 of the projector.
  static std::vector<Planned> vision_tower() {
    std::vector<Planned> out;
    const auto add = [&](const std::string& name, const Shape& shape, bool norm = false) {
      out.push_back({{name + ".weight", DType::bf16, shape}, norm ? Fill::ones : Fill::normal, 0.02F, 0, 0});
    };
    for (int b = 0; b < 27; ++b) {
      const std::string block = fmt::format("vision_tower.encoder.blocks.{}.", b);
      add(block + "norm0", {1024}, true);
      add(block + "norm1", {1024}, true);
      add(block + "wqkv", {4608, 1024});
      add(block + "wo", {1024, 1536});
      add(block + "mlp.fc0", {4096, 1024});
      add(block + "mlp.fc1", {1024, 4096});
    }
    add("vision_tower.encoder.final_layernorm", {1024}, true);
    add("vision_tower.patch_embed.proj", {1024, 3, 14, 14});
    add("vision_tower.patch_embed.pos_emb", {64, 64, 1024});
    return out;
  }
  static std::vector<Planned> projector() {
    return {{{"mm_projector.proj.0.weight", DType::bf16, {4096, 4096}}, Fill::normal, 0.02F, 0, 0},
            {{"mm_projector.proj.2.weight", DType::bf16, {kPublishedHidden, 4096}}, Fill::normal, 0.02F, 0, 0},
            {{"mm_projector.post_norm.weight", DType::bf16, {kPublishedHidden}}, Fill::ones, 0.0F, 0, 0}};
  }

  void write(int64_t number, const std::vector<Planned>& tensors) {
    const std::string file = fmt::format("model-{:05}-of-{:06}.safetensors", number, files_);
    std::vector<TensorSpec> specs;
    std::map<std::string_view, const Planned*> by_name;
    specs.reserve(tensors.size());
    for (const Planned& p : tensors) {
      specs.push_back(p.spec);
      by_name.emplace(p.spec.name, &p);
    }
    SafetensorsWriter writer(options_.out / file, std::move(specs), {},
                             options_.sparse ? SafetensorsWriter::Mode::sparse : SafetensorsWriter::Mode::full);
    for (const TensorEntry& entry : writer.entries()) {
      if (!options_.sparse) fill(*by_name.at(entry.name), entry, writer);
      index_ += fmt::format("{}\n  \"{}\": \"{}\"", index_.empty() ? "" : ",", entry.name, file);
      report_.data_bytes += entry.bytes();
      ++report_.tensors;
    }
    report_.file_bytes += writer.file_size();
    writer.finish();
    if (progress_) progress_(report_.data_bytes, total_);
  }

  void fill(const Planned& p, const TensorEntry& entry, SafetensorsWriter& writer) {
    Random random(p.spec.name, options_.seed);
    int64_t index = 0;
    for (int64_t done = 0; done < entry.bytes();) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(entry.bytes() - done, kChunk));
      buffer_.resize(bytes);
      switch (p.spec.dtype) {
        case DType::u8: fill_bytes(p, random); break;
        case DType::bf16: fill_values<uint16_t>(p, random, index, [](float value) { return f32_to_bf16(value); }); break;
        default: fill_values<float>(p, random, index, [](float value) { return value; }); break;
      }
      writer.append(entry.name, buffer_);
      done += static_cast<int64_t>(bytes);
      if (progress_) progress_(report_.data_bytes + done, total_);
    }
  }

  void fill_bytes(const Planned& p, Random& random) {
    for (size_t at = 0; at < buffer_.size(); at += 8) {
      uint64_t bits = random.bits();
      if (p.fill == Fill::scales)  // each byte is the scale or the one above it
        bits = (bits & 0x0101010101010101ULL) + 0x0101010101010101ULL * p.scale_byte;
      std::memcpy(buffer_.data() + at, &bits, std::min<size_t>(8, buffer_.size() - at));
    }
  }

  template <class T, class Convert>
  void fill_values(const Planned& p, Random& random, int64_t& index, Convert convert) {
    for (size_t at = 0; at < buffer_.size(); at += sizeof(T), ++index) {
      float value = 1.0F;
      if (p.fill == Fill::normal) value = p.deviation * random.normal();
      if (p.fill == Fill::small) value = 0.1F * random.normal();
      if (p.fill == Fill::a_log) value = index < p.live ? std::log(1.0F + 15.0F * random.uniform()) : 0.0F;
      const T stored = convert(value);
      std::memcpy(buffer_.data() + at, &stored, sizeof(T));
    }
  }

  const SynthOptions& options_;
  const std::function<void(int64_t, int64_t)>& progress_;
  Json json_;
  std::shared_ptr<const ModelConfig> shared_config_;
  const ModelConfig& config_;
  int64_t files_ = 0;
  int64_t total_ = 0;
  std::string index_;
  std::vector<std::byte> buffer_;
  SynthReport report_;
};

}  // namespace

Json synth_config(const SynthOptions& options) {
  Json json = preset_config(options.preset);
  Json& text = text_of(json);
  const int64_t published_vocab = text.at("vocab_size").get<int64_t>();
  std::vector<std::string> changed;
  for (const std::string& setting : options.set) apply_setting(text, setting, changed);
  const auto set_by_user = [&](std::string_view key) { return std::ranges::find(changed, key) != changed.end(); };
  if (options.layers) {
    if (set_by_user("num_hidden_layers"))
      fail(ErrorKind::bad_input, kPlace, "--layers and --set num_hidden_layers say the same thing; wanted one of them");
    text["num_hidden_layers"] = *options.layers;
  }

  if (text.contains("linear_attn_config") && !set_by_user("linear_attn_config.kda_layers") &&
      !set_by_user("linear_attn_config.full_attn_layers") && text.at("num_hidden_layers").is_number_integer()) {
    Json& linear = text.at("linear_attn_config");
    const int64_t layers = std::min<int64_t>(text.at("num_hidden_layers").get<int64_t>(), 1 << 16);
    for (int64_t number = 1; number <= layers; ++number)
      linear.at(number % 4 == 0 || number == layers ? "full_attn_layers" : "kda_layers").push_back(number);
  }

  const Json& vocab = text.at("vocab_size");
  if (vocab.is_number_integer() && vocab.get<int64_t>() != published_vocab && vocab.get<int64_t>() > 0) {
    const int64_t size = vocab.get<int64_t>();
    const auto moved = [&](const Json& id) { return std::max<int64_t>(0, size - (published_vocab - id.get<int64_t>())); };
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (!set_by_user(key)) text[key] = moved(text.at(key));
    constexpr const char* kMedia = "media_placeholder_token_id";
    if (json.contains(kMedia)) json[kMedia] = moved(json.at(kMedia));
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"}) {
    if (&text != &json) json[key] = text.at(key);
  }
  if (!options.vision || text.at("hidden_size") != kPublishedHidden) json.erase("vision_config");
  try {
    (void)parse_model_config(json, "config.json");
  } catch (const Error& error) {
    fail(ErrorKind::bad_input, kPlace, "--layers/--set give an invalid configuration: {}", error.what());
  }
  return json;
}

SynthReport synthesize(const SynthOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  return Writer(options, progress).run();
}

Json SynthReport::to_json() const {
  return {{"shards", shards}, {"tensors", tensors}, {"data_bytes", data_bytes}, {"file_bytes", file_bytes}};
}

std::string SynthReport::to_text() const {
  return fmt::format("{}, {}, {} bytes ({})\n", counted(shards, "file"), counted(tensors, "tensor"), with_commas(file_bytes),
                     human_bytes(file_bytes));
}

}  // namespace weft
