#include "formats/quantization.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/packed.h"

namespace weft {
namespace {

constexpr std::string_view kMlxKey = "quantization";
constexpr size_t kMaxShown = 200;  // characters of a foreign value that a message repeats

std::string shown(const Json* value) {
  if (value == nullptr) return "nothing";
  std::string text = value->dump(-1, ' ', true);
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

const Json* member(const Json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The object of MLX: `quantization` at the top or in text_config; its copy `quantization_config` where that stands alone.
const Json* find_mlx(const Json& config, std::string_view place) {
  if (!config.is_object()) return nullptr;
  if (const Json* found = member(config, kMlxKey)) return found;
  if (const Json* text = member(config, "text_config"); text != nullptr && text->is_object()) {
    if (const Json* found = member(*text, kMlxKey)) return found;
  }
  const Json* copy = find_quantization_config(config, place);
  const bool mlx = copy != nullptr && copy->is_object() && member(*copy, "quant_method") == nullptr &&
                   member(*copy, "group_size") != nullptr && member(*copy, "bits") != nullptr;
  return mlx ? copy : nullptr;
}

}  // namespace

QuantizationKind quantization_kind(const Json& config, std::string_view place) {
  if (find_mlx(config, place) != nullptr) return QuantizationKind::mlx;
  const Json* quantization = find_quantization_config(config, place);
  if (quantization == nullptr) return QuantizationKind::none;
  const Json* method = quantization->is_object() ? member(*quantization, "quant_method") : nullptr;
  return method != nullptr && *method == Json("fp8") ? QuantizationKind::fp8 : QuantizationKind::compressed_tensors;
}

void refuse_foreign_method(const Json& quantization_config, std::string_view place) {
  if (!quantization_config.is_object()) return;
  const Json* method = member(quantization_config, "quant_method");
  if (method == nullptr || *method == Json("compressed-tensors") || *method == Json("fp8")) return;
  fail(ErrorKind::unsupported, place,
       "quantization_config.quant_method: wanted \"compressed-tensors\" (MXFP4), \"fp8\" (blocks of 128x128) or a conversion "
       "of MLX, "
       "found {}",
       shown(method));
}

Fp8Rules::Fp8Rules(const Json& config, std::string_view place) {
  const Json* quantization = find_quantization_config(config, place);
  const auto want = [&](std::string_view key, const Json& wanted, bool required) {
    const Json* found = member(*quantization, key);
    if (found == nullptr ? required : found->dump() != wanted.dump())
      fail(ErrorKind::bad_checkpoint, place, "quantization_config.{}: wanted {}, found {}", key, wanted.dump(), shown(found));
  };
  want("quant_method", "fp8", true);
  want("fmt", "e4m3", false);
  want("activation_scheme", "dynamic", false);
  want("weight_block_size", Json::array({128, 128}), true);
  const Json* skipped = member(*quantization, "modules_to_not_convert");
  if (skipped == nullptr) return;
  const auto is_string = [](const Json& entry) { return entry.is_string(); };
  if (!skipped->is_array() || !std::ranges::all_of(*skipped, is_string))
    fail(ErrorKind::bad_checkpoint, place, "quantization_config.modules_to_not_convert: wanted a list of strings, found {}",
         shown(skipped));
  for (const Json& entry : *skipped) skipped_.push_back(entry.get<std::string>());
}

bool Fp8Rules::skips(std::string_view module) const {
  return std::ranges::any_of(skipped_, [&](const std::string& entry) {
    return module.starts_with(entry) && (module.size() == entry.size() || module[entry.size()] == '.');
  });
}

MlxRules::MlxRules(const Json& config, std::string_view place) {
  const Json* object = find_mlx(config, place);
  if (object == nullptr || !object->is_object())
    fail(ErrorKind::bad_checkpoint, place, "{}: wanted an object, found {}", kMlxKey, shown(object));
  const auto rule = [&](const Json& from, const std::string& path) {
    const auto number = [&](std::string_view key) -> int64_t {
      const Json* found = member(from, key);
      if (found == nullptr || !found->is_number_integer())
        fail(ErrorKind::bad_checkpoint, place, "{}.{}: wanted an integer, found {}", path, key, shown(found));
      return found->get<int64_t>();
    };
    MlxRule made;
    if (const Json* mode = member(from, "mode"); mode != nullptr && *mode != Json("affine")) {
      if (*mode != Json("mxfp4"))
        fail(ErrorKind::unsupported, place, "{}.mode: wanted \"affine\" or \"mxfp4\", found {}", path, shown(mode));
      made.mode = MlxRule::Mode::mxfp4;
    }
    made.bits = number("bits");
    made.group = number("group_size");
    constexpr std::array<int64_t, 6> kBits = {2, 3, 4, 5, 6, 8};
    constexpr std::array<int64_t, 3> kGroups = {32, 64, 128};
    const bool known = made.mode == MlxRule::Mode::mxfp4 ? made.bits == 4 && made.group == 32
                                                         : std::ranges::find(kBits, made.bits) != kBits.end() &&
                                                               std::ranges::find(kGroups, made.group) != kGroups.end();
    if (!known)
      fail(ErrorKind::bad_checkpoint, place,
           "{}: wanted affine codes of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, or mxfp4 of 4 bits in groups of 32, "
           "found {}",
           path, shown(&from));
    return made;
  };
  common_ = rule(*object, std::string(kMlxKey));
  for (const auto& [key, value] : object->items()) {
    if (key == "bits" || key == "group_size" || key == "mode") continue;
    const std::string path = fmt::format("{}.{}", kMlxKey, key);
    if (value.is_object()) {
      overrides_.emplace(key, rule(value, path));
    } else if (value.is_boolean()) {
      overrides_.emplace(key, value.get<bool>() ? std::optional(common_) : std::nullopt);
    } else {
      fail(ErrorKind::bad_checkpoint, place, "{}: wanted a rule for a module (an object or a boolean), found {}", path,
           shown(&value));
    }
  }
}

std::optional<MlxRule> MlxRules::of(std::string_view module) const {
  const auto found = overrides_.find(std::string(module));
  return found == overrides_.end() ? std::optional(common_) : found->second;
}

std::optional<size_t> find_e4m3_nan(std::span<const std::byte> codes) {
  constexpr size_t kBlock = 4096;  // a loop without exits, which compilers turn into vector code
  const auto is_nan = [](std::byte code) { return (static_cast<unsigned>(code) & 0x7FU) == 0x7FU; };
  for (size_t at = 0; at < codes.size(); at += kBlock) {
    const std::span<const std::byte> block = codes.subspan(at, std::min(kBlock, codes.size() - at));
    unsigned found = 0;
    for (const std::byte code : block) found |= static_cast<unsigned>(is_nan(code));
    if (found != 0) return at + static_cast<size_t>(std::ranges::find_if(block, is_nan) - block.begin());
  }
  return std::nullopt;
}

}  // namespace weft
