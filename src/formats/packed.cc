#include "formats/packed.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/mx.h"

namespace weft {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// "P" of "P<suffix>", or nothing. P may not be empty.
std::optional<std::string_view> stem_of(std::string_view name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

std::string joined(std::string_view stem, std::string_view suffix) { return std::string(stem) + std::string(suffix); }

void check_u8_matrix(const Inventory& inventory, TensorId id) {
  const std::string place = inventory.path_of(inventory.file_index(id)).string();
  if (inventory.dtype(id) != DType::u8) {
    fail(ErrorKind::bad_checkpoint, place, "tensor '{}': must be U8, found {} {}", inventory.name(id), inventory.dtype(id),
         inventory.shape(id));
  }
  if (inventory.shape(id).rank() != 2) {
    fail(ErrorKind::bad_checkpoint, place, "tensor '{}': must be two-dimensional, found {}", inventory.name(id),
         inventory.shape(id));
  }
}

void check_pair(const Inventory& inventory, const PackedPair& pair) {
  check_u8_matrix(inventory, pair.packed);
  check_u8_matrix(inventory, pair.scale);
  const std::string place = inventory.path_of(inventory.file_index(pair.packed)).string();
  const std::string_view name = inventory.name(pair.packed);
  const Shape& packed = inventory.shape(pair.packed);
  const Shape& scale = inventory.shape(pair.scale);
  if (packed[0] == 0 || packed[1] == 0)
    fail(ErrorKind::bad_checkpoint, place, "tensor '{}': wanted a matrix with elements, found {}", name, packed);
  if (packed[1] % kMxfp4BlockBytes != 0) {
    fail(ErrorKind::bad_checkpoint, place, "tensor '{}': wanted a last axis that is a multiple of {} packed bytes, found {}",
         name, kMxfp4BlockBytes, packed);
  }
  if (scale[0] != packed[0] || scale[1] != packed[1] / kMxfp4BlockBytes) {
    fail(ErrorKind::bad_checkpoint, place, "tensors '{}' {} and '{}' {} are incompatible: wanted scales of shape [{}, {}]",
         name, packed, inventory.name(pair.scale), scale, packed[0], packed[1] / kMxfp4BlockBytes);
  }
}

}  // namespace

PackedTensors::PackedTensors(const Inventory& inventory) : inventory_(&inventory) {
  const std::string place = inventory.folder().string();
  for (TensorId id = 0; id < inventory.size(); ++id) {
    const std::string_view name = inventory.name(id);
    if (const auto stem = stem_of(name, kScaleSuffix)) {
      if (!inventory.find(joined(*stem, kPackedSuffix))) {
        fail(ErrorKind::bad_checkpoint, place, "tensor '{}': orphan scale, found no tensor '{}'", name,
             joined(*stem, kPackedSuffix));
      }
    }
    const auto stem = stem_of(name, kPackedSuffix);
    if (!stem) continue;
    const std::optional<TensorId> scale = inventory.find(joined(*stem, kScaleSuffix));
    if (!scale) {
      fail(ErrorKind::bad_checkpoint, place, "tensor '{}': missing scale tensor '{}'", name, joined(*stem, kScaleSuffix));
    }
    if (inventory.find(joined(*stem, kWeightSuffix))) {
      fail(ErrorKind::bad_checkpoint, place, "packed tensor '{}': its name '{}' conflicts with a stored tensor", name,
           joined(*stem, kWeightSuffix));
    }
    pairs_.push_back({id, *scale});
    check_pair(inventory, pairs_.back());
  }
}

void PackedNames::add(std::string_view name) {
  if (name.ends_with(kZeroPointSuffix)) has_zero_points = true;
  if (stem_of(name, kPackedSuffix)) packed.push_back(name);
}

PackedNames packed_names(const Inventory& inventory) {
  PackedNames names;
  for (TensorId id = 0; id < inventory.size(); ++id) names.add(inventory.name(id));
  return names;
}

const PackedPair* PackedTensors::find(std::string_view virtual_name) const {
  const auto stem = stem_of(virtual_name, kWeightSuffix);
  if (!stem) return nullptr;
  const std::optional<TensorId> packed = inventory_->find(joined(*stem, kPackedSuffix));
  if (!packed) return nullptr;
  const auto found = std::ranges::lower_bound(pairs_, *packed, {}, &PackedPair::packed);
  return found != pairs_.end() && found->packed == *packed ? &*found : nullptr;
}

std::string PackedTensors::virtual_name(const PackedPair& pair) const {
  return joined(stem_of(inventory_->name(pair.packed), kPackedSuffix).value(), kWeightSuffix);
}

Shape PackedTensors::virtual_shape(const PackedPair& pair) const {
  const Shape& packed = inventory_->shape(pair.packed);
  return {packed[0], packed[1] * 2};
}

PackedSlice::PackedSlice(std::string_view name, const Shape& shape, int64_t row_begin, int64_t row_end, int64_t col_begin,
                         int64_t col_end)
    : name_(name), cols_(shape.last()), row_begin_(row_begin), row_end_(row_end), col_begin_(col_begin), col_end_(col_end) {
  if (shape.rank() != 2 || shape[1] % kMxBlock != 0)
    fail(ErrorKind::internal, "packed slice", "'{}': wanted a matrix of whole blocks, found {}", name, shape);
  if (row_begin < 0 || row_begin > row_end || row_end > shape[0] || col_begin < 0 || col_begin > col_end ||
      col_end > shape[1]) {
    fail(ErrorKind::internal, "packed slice", "'{}': wanted rows and columns inside {}, found rows [{}, {}), columns [{}, {})",
         name, shape, row_begin, row_end, col_begin, col_end);
  }
}

PackedSlice::Bytes PackedSlice::packed_row(int64_t i) const {
  const int64_t row = (row_begin_ + i) * (cols_ / 2);
  const int64_t begin = row + kMxfp4BlockBytes * group_begin();
  return {begin, begin + kMxfp4BlockBytes * groups()};
}

PackedSlice::Bytes PackedSlice::scale_row(int64_t i) const {
  const int64_t begin = (row_begin_ + i) * (cols_ / kMxBlock) + group_begin();
  return {begin, begin + groups()};
}

std::vector<PackedSlice::Bytes> PackedSlice::packed_ranges() const {
  if (rows() == 0 || columns() == 0) return {};
  if (full_width()) return {{packed_row(0).begin, packed_row(rows() - 1).end}};
  std::vector<Bytes> ranges;
  for (int64_t i = 0; i < rows(); ++i) ranges.push_back(packed_row(i));
  return ranges;
}

std::vector<PackedSlice::Bytes> PackedSlice::scale_ranges() const {
  if (rows() == 0 || columns() == 0) return {};
  if (full_width()) return {{scale_row(0).begin, scale_row(rows() - 1).end}};
  std::vector<Bytes> ranges;
  for (int64_t i = 0; i < rows(); ++i) ranges.push_back(scale_row(i));
  return ranges;
}

namespace {

template <class T, class DecodeBlock>
void decode_slice(const PackedSlice& slice, std::string_view name, std::span<const uint8_t> packed,
                  std::span<const uint8_t> scales, std::span<T> out, const DecodeBlock& decode_block) {
  const int64_t blocks = slice.rows() * slice.groups();
  if (std::ssize(packed) != blocks * kMxfp4BlockBytes || std::ssize(scales) != blocks ||
      std::ssize(out) != slice.rows() * slice.columns()) {
    fail(ErrorKind::internal, "packed slice", "'{}': wanted {} packed bytes, {} scales and {} values, found {}, {} and {}",
         name, blocks * kMxfp4BlockBytes, blocks, slice.rows() * slice.columns(), packed.size(), scales.size(), out.size());
  }
  std::array<T, kMxBlock> values{};
  int64_t block = 0;
  for (int64_t row = 0; row < slice.rows(); ++row) {
    for (int64_t group = 0; group < slice.groups(); ++group, ++block) {
      decode_block(packed.subspan(static_cast<size_t>(block * kMxfp4BlockBytes)).template first<kMxfp4BlockBytes>(),
                   scales[static_cast<size_t>(block)], values);
      // Column of the slice at which this block's first value lies; negative where the front is cropped.
      const int64_t at = group * kMxBlock - slice.crop();
      const int64_t begin = std::max<int64_t>(0, -at);
      const int64_t end = std::min<int64_t>(kMxBlock, slice.columns() - at);
      std::copy(values.begin() + begin, values.begin() + end, out.begin() + row * slice.columns() + at + begin);
    }
  }
}

}  // namespace

void PackedSlice::decode(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<float> out) const {
  decode_slice(*this, name_, packed, scales, out, mxfp4_decode_block);
}

void PackedSlice::decode_bf16(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<uint16_t> out) const {
  decode_slice(*this, name_, packed, scales, out, mxfp4_decode_block_bf16);
}

namespace {

[[noreturn]] void bad_block(std::string_view name, size_t index, int64_t groups, int64_t first_row, int64_t first_block,
                            std::string_view found) {
  fail(ErrorKind::bad_checkpoint, "checkpoint", "tensor '{}': row {}, block {}: wanted a finite scale, found {}", name,
       first_row + static_cast<int64_t>(index) / groups, first_block + static_cast<int64_t>(index) % groups, found);
}

// The smallest magnitude code that is infinite at this scale, or 8: 4 x 2^126 and 2 x 2^127 are 2^128.
int first_infinite_code(uint8_t scale) { return scale == 254 ? 4 : scale == 253 ? 6 : 8; }

void check_groups(std::string_view name, size_t scales, int64_t groups) {
  if (groups < 1 || static_cast<int64_t>(scales) % groups != 0)
    fail(ErrorKind::internal, "check_scales", "'{}': wanted whole rows of {} scales, found {}", name, groups, scales);
}

}  // namespace

void check_finite_blocks(std::string_view name, std::span<const uint8_t> packed, std::span<const uint8_t> scales,
                         int64_t groups, int64_t first_row, int64_t first_block) {
  check_scales(name, scales, groups, first_row, first_block);
  if (packed.size() != scales.size() * kMxfp4BlockBytes)
    fail(ErrorKind::internal, "check_finite_blocks", "'{}': wanted 16 packed bytes a scale, found {} and {}", name,
         packed.size(), scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const int limit = first_infinite_code(scales[i]);
    if (limit == 8) continue;
    for (const uint8_t byte : packed.subspan(i * kMxfp4BlockBytes, kMxfp4BlockBytes)) {
      if ((byte & 7) >= limit || (byte >> 4 & 7) >= limit)
        bad_block(name, i, groups, first_row, first_block, fmt::format("byte {} with an infinite value", scales[i]));
    }
  }
}

void check_scales(std::string_view name, std::span<const uint8_t> scales, int64_t groups, int64_t first_row,
                  int64_t first_block) {
  check_groups(name, scales.size(), groups);
  const auto nan = std::ranges::find(scales, kE8m0Nan);
  if (nan != scales.end())
    bad_block(name, static_cast<size_t>(nan - scales.begin()), groups, first_row, first_block, "byte 255 (NaN)");
}

}  // namespace weft
