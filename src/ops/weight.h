// A weight matrix in the form in which it was published.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::ops {

enum class WeightFormat : uint8_t {
  f32,        // data: [out, in] float32
  bf16,       // data: [out, in] bfloat16
  mxfp4,      // data: [out, in/2] packed E2M1 (even column in the low nibble); scales: [out, in/32] E8M0 (K3 spec 2.4)
  fp8_block,  // data: [out, in] E4M3; scales: [ceil(out/128), ceil(in/128)], one for a block of the matrix (Qwen3-Next
              // spec 2.5)
  affine,     // data: [out, in*bits/8] codes; scales, biases: [out, in/group] (MLX; Qwen3-Next spec 2.5)
};

// Element type of the scales of fp8_block, and of the scales and biases of affine.
enum class ScaleType : uint8_t { bf16, f16, f32 };

inline constexpr int64_t kScaleBlock = 128;  // rows and columns that share a scale of fp8_block

// [out, in], row-major, little-endian; y = W x. A look at memory of another owner (a mapped file or a buffer).
//
// What a stored value means, in float32 operations that round once each:
// - fp8_block: value(code) * scale. Scales are finite and below 2^120 in magnitude.
// - affine: (code * scale) + bias, the product rounded before the sum. Codes of `bits` bits follow each other in a row from the
//   lowest bit of its first byte on, across byte borders; bits is 2, 3, 4, 5, 6 or 8, group 32, 64 or 128, and a row whole
//   groups.
struct WeightView {
  WeightFormat format = WeightFormat::bf16;
  int64_t out = 0;
  int64_t in = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // mxfp4, fp8_block, affine
  const std::byte* biases = nullptr;  // affine
  ScaleType scale_type = ScaleType::bf16;
  uint8_t bits = 0;       // affine
  uint8_t group = 0;      // affine: columns that share a scale and a bias
  uint8_t block_row = 0;  // fp8_block: where row 0 lies in its block, [0, 128)

  // Bytes of one row of `data`.
  [[nodiscard]] constexpr int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::f32: return in * 4;
      case WeightFormat::bf16: return in * 2;
      case WeightFormat::mxfp4: return in / 2;
      case WeightFormat::fp8_block: return in;
      case WeightFormat::affine: return in * bits / 8;
    }
    return 0;
  }
  // Bytes of one row of `scales`; of one row of blocks for fp8_block.
  [[nodiscard]] constexpr int64_t scale_row_bytes() const {
    switch (format) {
      case WeightFormat::f32:
      case WeightFormat::bf16: return 0;
      case WeightFormat::mxfp4: return in / 32;
      case WeightFormat::fp8_block: return (in + kScaleBlock - 1) / kScaleBlock * scale_size();
      case WeightFormat::affine: return in / group * scale_size();
    }
    return 0;
  }
  [[nodiscard]] constexpr int64_t scale_size() const { return scale_type == ScaleType::f32 ? 4 : 2; }

  [[nodiscard]] constexpr int64_t data_bytes() const { return out * row_bytes(); }
  [[nodiscard]] constexpr int64_t scale_bytes() const {
    if (format != WeightFormat::fp8_block) return out * scale_row_bytes();
    return (block_row + out + kScaleBlock - 1) / kScaleBlock * scale_row_bytes();
  }
  [[nodiscard]] constexpr int64_t bias_bytes() const { return format == WeightFormat::affine ? scale_bytes() : 0; }
  // Bytes that one product must read: 4.25 bits per weight for mxfp4.
  [[nodiscard]] constexpr int64_t bytes() const { return data_bytes() + scale_bytes() + bias_bytes(); }

  // Where the scales, or the biases, of a row begin.
  [[nodiscard]] const std::byte* row_scales(int64_t row) const {
    return scales + (format == WeightFormat::fp8_block ? (block_row + row) / kScaleBlock : row) * scale_row_bytes();
  }
  [[nodiscard]] const std::byte* row_biases(int64_t row) const { return biases + row * scale_row_bytes(); }

  // Rows [begin, end) of the same matrix.
  [[nodiscard]] WeightView rows(int64_t begin, int64_t end) const {
    WeightView part = *this;
    part.out = end - begin;
    part.data = data + begin * row_bytes();
    if (scales != nullptr) part.scales = row_scales(begin);
    if (biases != nullptr) part.biases = row_biases(begin);
    if (format == WeightFormat::fp8_block) part.block_row = static_cast<uint8_t>((block_row + begin) % kScaleBlock);
    return part;
  }
};

// One routed expert: w1 = gate, w3 = up [M, Z]; w2 = down [Z, M].
struct ExpertView {
  WeightView w1;
  WeightView w2;
  WeightView w3;
};

// The routed experts of a layer, indexed by id.
struct ExpertTable {
  ExpertTable() = default;
  ExpertTable(std::span<const ExpertView> on_host) : views(on_host) {}     // NOLINT(google-explicit-constructor): a name for it
  ExpertTable(const std::vector<ExpertView>& on_host) : views(on_host) {}  // NOLINT(google-explicit-constructor): likewise
  ExpertTable(std::span<const ExpertView> on_host, const ExpertView* on_device) : views(on_host), device(on_device) {}

  std::span<const ExpertView> views;
  const ExpertView* device = nullptr;  // GPU: the same entries in its memory, from which kernels take the experts that ids name
};

}  // namespace weft::ops
