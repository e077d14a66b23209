// The configuration of a model: what every family has, and what the rest of the program asks without knowing the family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "model/param_table.h"
#include "model/state_layout.h"
#include "ops/ops.h"

namespace weft {

// Features are present or absent as the keys of config.json are, never by the name of a release.
struct ModelConfig {
  virtual ~ModelConfig() = default;

  std::string model_type;   // top-level, e.g. "kimi_k3"
  bool nested = false;      // the text model's keys stand in `text_config`
  int64_t hidden_size = 0;  // D
  int64_t layer_count = 0;  // L
  int64_t vocab_size = 0;   // V
  float rms_norm_eps = 0.0F;
  bool tie_word_embeddings = false;
  int64_t max_context = 0;       // tokens
  std::vector<int64_t> eos_ids;  // of config.json; may be empty
  int64_t listed_layers = 0;     // of the lists of layers; above L in a truncated copy (ruling R3)

  ops::Activation activation;
  int64_t intermediate_size = 0;      // F, dense layers; 0: there is none
  int64_t experts = 0;                // E; 0: all layers dense
  int64_t moe_intermediate_size = 0;  // M
  ops::RouterRule router;
  std::vector<bool> moe_layers;  // [L]

  std::optional<int64_t> residual_block;  // B of Attention Residuals; absent: plain residuals

  Json quantization;               // quantization_config; null: absent
  std::vector<std::string> notes;  // visible notes of loading

  [[nodiscard]] bool is_moe(LayerIndex layer) const { return moe_layers[static_cast<size_t>(layer.value)]; }
  [[nodiscard]] LayerRange all_layers() const { return {LayerIndex(0), LayerIndex(layer_count)}; }
  // Frozen residual blocks that exist before layer l: ceil(l / B); 0 without Attention Residuals.
  [[nodiscard]] int64_t blocks_before(LayerIndex layer) const {
    return residual_block ? (layer.value + *residual_block - 1) / *residual_block : 0;
  }
  [[nodiscard]] bool starts_block(LayerIndex layer) const { return residual_block && layer.value % *residual_block == 0; }
  // "KDA MoE", "GDN dense", ...
  [[nodiscard]] std::string kind(LayerIndex layer) const {
    return std::string(mixer_name(layer)) + (is_moe(layer) ? " MoE" : " dense");
  }

  // The tensors of the published checkpoint (model/param_table.h).
  [[nodiscard]] virtual std::vector<ParamSpec> params() const = 0;
  // The same for a conversion of MLX that stores what `stores` says (canonical names).
  [[nodiscard]] virtual std::vector<ParamSpec> mlx_params(const std::function<bool(std::string_view name)>& stores) const {
    (void)stores;
    return params();
  }
  // Tensors that may stand for several rows of the table: stacked and fused experts, fused projections.
  [[nodiscard]] virtual std::vector<JoinedTensor> joined_tensors() const { return {}; }
  // The canonical name of a stored tensor: prefixes of wrappers and spellings of older files are gone.
  [[nodiscard]] virtual std::string canonical_name(std::string_view stored) const = 0;
  // What stands before canonical names in the published files.
  [[nodiscard]] virtual std::string name_prefix() const { return ""; }
  // Which of the tensors that are not loaded it is; canonical name.
  [[nodiscard]] virtual bool is_vision(std::string_view name) const = 0;
  [[nodiscard]] virtual bool is_mtp(std::string_view name) const = 0;

  // Whether the norm of this role stores its weight less one.
  [[nodiscard]] virtual bool zero_centred_norm(std::string_view role) const {
    (void)role;
    return false;
  }

  [[nodiscard]] virtual StateLayout state_layout(LayerRange layers) const = 0;
  [[nodiscard]] virtual std::string_view mixer_name(LayerIndex layer) const = 0;
  [[nodiscard]] virtual int64_t expert_width() const { return hidden_size; }  // Z, what the experts act on

  // For plans. Elements of a row that live at once in the mixer and in the MLP of a layer, as the family takes them; the widest
  // input of a product; floats of scratch memory of one row of the attention on a GPU (ops/attention_parts.h).
  [[nodiscard]] virtual int64_t mixer_elements(LayerIndex layer) const = 0;
  [[nodiscard]] virtual int64_t mlp_elements(LayerIndex layer) const = 0;
  [[nodiscard]] virtual int64_t widest_input() const = 0;
  [[nodiscard]] virtual int64_t attention_scratch() const = 0;
  // Operations of the mixer beside its products: of each token, and of each pair of a token and an earlier position.
  struct MixerOperations {
    int64_t of_token = 0;
    int64_t of_pair = 0;
  };
  [[nodiscard]] virtual MixerOperations mixer_operations(LayerIndex layer) const = 0;

  // For `weft inspect`: the sizes of the family, and the same in words.
  [[nodiscard]] virtual Json describe() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;
};

inline constexpr std::string_view kSupportedModels =
    R"("kimi_k3", "kimi_linear", "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text" or "qwen3_5_moe_text")";

// The family by `model_type`, then the family's own rules. Throws bad_checkpoint or unsupported naming key and value; `place`
// names the file in messages.
[[nodiscard]] std::shared_ptr<const ModelConfig> parse_model_config(const Json& config, std::string_view place);
[[nodiscard]] std::shared_ptr<const ModelConfig> load_model_config(const std::filesystem::path& model_dir);

}  // namespace weft
