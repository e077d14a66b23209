// Which family a checkpoint is of.
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/families/kimi.h"
#include "model/families/kimi_config.h"
#include "model/families/qwen.h"
#include "model/families/qwen_config.h"
#include "model/model_config.h"
#include "model/stage_options.h"

namespace weft {

std::shared_ptr<const ModelConfig> parse_model_config(const Json& config, std::string_view place) {
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string() && is_qwen_type(type->get<std::string>())) {
    return std::make_shared<const QwenConfig>(parse_qwen_config(config, place));
  }
  return std::make_shared<const KimiConfig>(parse_kimi_config(config, place));
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
