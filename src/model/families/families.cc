// Which family a checkpoint is of.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/families/kimi.h"
#include "model/families/kimi_config.h"
#include "model/families/qwen.h"
#include "model/families/qwen_config.h"
#include "model/family_names.h"
#include "model/model_config.h"
#include "model/stage_options.h"

namespace weft {
namespace {

using ConfigReader = std::shared_ptr<const ModelConfig> (*)(const Json& config, std::string_view place);

std::shared_ptr<const ModelConfig> read_kimi(const Json& config, std::string_view place) {
  return std::make_shared<const KimiConfig>(parse_kimi_config(config, place));
}

std::shared_ptr<const ModelConfig> read_qwen(const Json& config, std::string_view place) {
  return std::make_shared<const QwenConfig>(parse_qwen_config(config, place));
}

struct Family {
  std::string_view name;  // model_type
  ConfigReader read;
};

// Sorted by name.
constexpr std::array<Family, 7> kFamilies = {{
    {"kimi_k3", read_kimi},
    {"kimi_linear", read_kimi},
    {"qwen3_5", read_qwen},
    {"qwen3_5_moe", read_qwen},
    {"qwen3_5_moe_text", read_qwen},
    {"qwen3_5_text", read_qwen},
    {"qwen3_next", read_qwen},
}};
static_assert(std::ranges::is_sorted(kFamilies, {}, &Family::name));

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

std::shared_ptr<const ModelConfig> parse_model_config(const Json& config, std::string_view place) {
  const auto type = config.find("model_type");
  const std::string name = type != config.end() && type->is_string() ? type->get<std::string>() : "";
  const auto* family = std::ranges::find(kFamilies, name, &Family::name);
  // One of the readers says what is wrong with another type, or with none.
  return family == kFamilies.end() ? read_kimi(config, place) : family->read(config, place);
}

std::shared_ptr<const ModelConfig> load_model_config(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  return parse_model_config(read_json_file(path), path.string());
}

std::unique_ptr<Stage> make_stage(std::shared_ptr<const Checkpoint> checkpoint, const StageOptions& options) {
  if (dynamic_cast<const QwenConfig*>(&checkpoint->config()) != nullptr) return make_qwen_stage(std::move(checkpoint), options);
  return make_kimi_stage(std::move(checkpoint), options);
}

}  // namespace weft
