// Packed weights: which tensors of a checkpoint are stored as MXFP4 pairs, and what a slice of one costs to read.
//
// A pair `P.weight_packed` (U8 [rows, cols / 2]) and `P.weight_scale` (U8 [rows, cols / 32]) stands for the virtual tensor
// `P.weight` [rows, cols]. The files decide what is packed: names and patterns of the configuration are only checked against it
// (K3 spec 1.3 and 2.4, mx_formats 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/inventory.h"

namespace weft {

inline constexpr std::string_view kPackedSuffix = ".weight_packed";
inline constexpr std::string_view kScaleSuffix = ".weight_scale";
inline constexpr std::string_view kZeroPointSuffix = ".weight_zero_point";
inline constexpr std::string_view kMxfp4Format = "mxfp4-pack-quantized";

// Ids of the two physical tensors.
struct PackedPair {
  TensorId packed = 0;
  TensorId scale = 0;
};

class PackedTensors {
 public:
  // Finds and checks every pair. Throws bad_checkpoint naming the tensor for: either half missing, a dtype other than U8, a
  // rank other than 2, a last axis that is not a multiple of 16 packed bytes, shapes that do not belong together, an empty
  // matrix, and a virtual name that is also stored. The inventory must outlive the result.
  explicit PackedTensors(const Inventory& inventory);

  [[nodiscard]] const std::vector<PackedPair>& pairs() const { return pairs_; }  // in the order of the packed tensors' ids
  [[nodiscard]] const PackedPair* find(std::string_view virtual_name) const;     // nullptr: not packed
  [[nodiscard]] std::string virtual_name(const PackedPair& pair) const;          // "P.weight"
  [[nodiscard]] Shape virtual_shape(const PackedPair& pair) const;               // [rows, cols]
  [[nodiscard]] const Inventory& inventory() const { return *inventory_; }

 private:
  const Inventory* inventory_;
  std::vector<PackedPair> pairs_;
};

// What the configuration is checked against: names alone, so that those of a whole checkpoint can be checked where only a part
// of it is opened.
struct PackedNames {
  std::vector<std::string_view> packed;  // "P.weight_packed"
  bool has_zero_points = false;

  // Takes note of a stored tensor's name, which must outlive this.
  void add(std::string_view name);
};
[[nodiscard]] PackedNames packed_names(const Inventory& inventory);

// `quantization_config` of a parsed config.json: in `text_config`, at the top level, or (equal) in both. nullptr when there is
// none. Throws bad_checkpoint when the two differ. `place`: the file's name.
[[nodiscard]] const Json* find_quantization_config(const Json& config, std::string_view place);

// What the configuration says about which modules may be packed.
struct QuantizationRules {
  std::vector<std::string> targets;  // of all groups
  std::vector<std::string> ignore;
};

// Checks every field against what Weft computes with (mx_formats 2.4). Throws bad_checkpoint naming the key, what was wanted
// and what was found. `has_zero_points`: the checkpoint stores zero points, which makes a `zp_dtype` an error.
[[nodiscard]] QuantizationRules check_quantization_config(const Json& quantization_config, std::string_view place,
                                                          bool has_zero_points);

// Checks that every packed tensor is eligible: its module is a Linear according to `is_linear` (which gets the module's name,
// the virtual name without ".weight"), some target matches it and no ignore entry does (mx_formats 2.5). Throws bad_checkpoint
// naming the first one "outside the packed-weight policy", and unsupported for a pattern that is not understood.
void check_packed_policy(const PackedNames& names, const QuantizationRules& rules, std::string_view place,
                         const std::function<bool(std::string_view module)>& is_linear);

// The two functions above for a whole checkpoint: one with packed tensors must have a quantization_config that allows them.
void check_packed_against_config(const PackedNames& names, const Json& config, std::string_view place,
                                 const std::function<bool(std::string_view module)>& is_linear);

// Rows [row_begin, row_end) and columns [col_begin, col_end) of a virtual tensor, as bytes of its two tensors.
class PackedSlice {
 public:
  // Throws an internal error naming `name` when the range does not lie in `shape` [rows, cols], cols a multiple of 32.
  PackedSlice(std::string_view name, const Shape& shape, int64_t row_begin, int64_t row_end, int64_t col_begin,
              int64_t col_end);

  struct Bytes {
    int64_t begin = 0;  // from the first byte of the packed or scale tensor
    int64_t end = 0;
    friend bool operator==(const Bytes&, const Bytes&) = default;
  };

  [[nodiscard]] int64_t rows() const { return row_end_ - row_begin_; }
  [[nodiscard]] int64_t columns() const { return col_end_ - col_begin_; }
  [[nodiscard]] int64_t row_begin() const { return row_begin_; }
  [[nodiscard]] int64_t group_begin() const { return col_begin_ / 32; }
  [[nodiscard]] int64_t group_end() const { return (col_end_ + 31) / 32; }
  [[nodiscard]] int64_t groups() const { return columns() == 0 ? 0 : group_end() - group_begin(); }  // read of each row
  [[nodiscard]] int64_t crop() const { return col_begin_ - 32 * group_begin(); }  // decoded values to drop at a row's front
  [[nodiscard]] bool full_width() const { return columns() == cols_; }            // then the rows are one contiguous range

  // Of row i of the slice, 0 <= i < rows().
  [[nodiscard]] Bytes packed_row(int64_t i) const;
  [[nodiscard]] Bytes scale_row(int64_t i) const;
  // The fewest contiguous ranges: one when full_width(), else one a row.
  [[nodiscard]] std::vector<Bytes> packed_ranges() const;
  [[nodiscard]] std::vector<Bytes> scale_ranges() const;

  // Decodes. `packed` and `scales`: the bytes of the ranges above, back to back (rows() * groups() * 16 and rows() * groups()).
  // out: [rows(), columns()].
  void decode(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<float> out) const;
  void decode_bf16(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<uint16_t> out) const;

 private:
  std::string name_;
  int64_t cols_;
  int64_t row_begin_;
  int64_t row_end_;
  int64_t col_begin_;
  int64_t col_end_;
};

// Refuses blocks that do not decode to finite numbers: scale byte 255, and scale bytes 253 and 254 together with codes whose
// value leaves the range (ruling R6). Throws bad_checkpoint naming `name` (the scale tensor), row and block. `groups`: blocks
// of a row; `first_row`, `first_block`: where the given bytes begin, for the message. The second form sees scales only: it
// refuses 255.
void check_finite_blocks(std::string_view name, std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                         int64_t groups, int64_t first_row = 0, int64_t first_block = 0);
void check_scales(std::string_view name, std::span<const uint8_t> scales, int64_t groups, int64_t first_row = 0,
                  int64_t first_block = 0);

}  // namespace weft
