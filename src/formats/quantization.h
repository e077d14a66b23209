// What config.json says about quantized weights beside compressed-tensors (formats/packed.h): FP8 with block scales and the
// conversions of MLX. The files decide what is quantized; the configuration is checked against them (Qwen3-Next spec 2.5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"

namespace weft {

enum class QuantizationKind : uint8_t {
  none,
  compressed_tensors,  // "quant_method": "compressed-tensors", or one that Weft does not know: packed.h refuses it
  fp8,                 // "quant_method": "fp8"
  mlx,                 // an object `quantization`, or a `quantization_config` without a method
};
// `place`: the file's name, for messages.
[[nodiscard]] QuantizationKind quantization_kind(const Json& config, std::string_view place);

// Throws unsupported naming the method of a `quantization_config` (null: there is none) that is of neither kind.
void refuse_foreign_method(const Json& quantization_config, std::string_view place);

// `quantization_config` of the FP8 releases.
class Fp8Rules {
 public:
  // Throws bad_checkpoint naming the key unless the codes are e4m3 in blocks of 128x128.
  Fp8Rules(const Json& config, std::string_view place);

  // Whether `modules_to_not_convert` names the module or one that holds it, by whole components between dots.
  [[nodiscard]] bool skips(std::string_view module) const;

 private:
  std::vector<std::string> skipped_;
};

// How MLX stores the weight of a module: `M.weight` U32 [..., in * bits / 32], `M.scales` [..., in / group] and, affine only,
// `M.biases` like the scales.
struct MlxRule {
  enum class Mode : uint8_t { affine, mxfp4 } mode = Mode::affine;
  int64_t bits = 4;
  int64_t group = 64;
  friend bool operator==(const MlxRule&, const MlxRule&) = default;
};

// The object `quantization` of a conversion: one rule for all modules, and other rules under modules' names.
class MlxRules {
 public:
  // Throws bad_checkpoint or unsupported naming the key: affine wants 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, mxfp4
  // 4 bits in groups of 32.
  MlxRules(const Json& config, std::string_view place);

  // The rule for a module under its stored name; nothing where its rule is `false`.
  [[nodiscard]] std::optional<MlxRule> of(std::string_view module) const;

 private:
  MlxRule common_;
  std::unordered_map<std::string, std::optional<MlxRule>> overrides_;
};

// The place of the first E4M3 code that is NaN (0x7f, 0xff).
[[nodiscard]] std::optional<size_t> find_e4m3_nan(std::span<const std::byte> codes);

}  // namespace weft
