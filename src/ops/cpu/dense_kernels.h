// What the instruction sets provide to the dense products. Only packed_rows.cc and dense.cc use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/dense.h"
#include "ops/math.h"

namespace weft::ops::cpu {

// Highway's targets: float32 lanes.
void pack_f32(const float* x, int64_t count, float* out);  // pads the last unit with zeros

// FP8 blocks and MLX's affine codes, whose values are float32 values: they take no part in products of bf16 pairs.
[[nodiscard]] inline bool is_quantized(WeightFormat format) {
  return format == WeightFormat::fp8_block || format == WeightFormat::affine;
}
void dense_quantized(const DenseProduct& product, int64_t begin, int64_t end);

// AVX512_BF16. Products flush subnormal bf16 values and subnormal results to zero, as the instruction does.
[[nodiscard]] bool bf16_products();  // the machine has them, and AVX3 is a target in use
[[nodiscard]] bool pack_bf16(const float* x, int64_t count, uint16_t* out);  // false: a value is no bf16 value
void dense_bf16(const DenseProduct& product, int64_t begin, int64_t end);

// Blocking of products of many rows. A panel of decoded weights (16 x 2 KiB) fills half of a shared 64 KiB L1 or a small part
// of L2; the sums of the rows that share it (128 x 16 x 64 bytes) stay in L2.
inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kPanelRowBytes = 2048;
inline constexpr int64_t kPanelStride = kPanelRowBytes + LineBuffer::kLine;  // bytes; see PackedRows::resize
inline constexpr int64_t kPanelRows = 128;
inline constexpr int64_t kDirectRows = 4;  // up to here weights are decoded into registers

inline constexpr int64_t kMaxSumFloats = 16;  // lanes of one sum

// The panel and the sums of one thread.
struct PanelScratch {
  PanelScratch() {
    panel.resize(kPanelOutputs * kPanelStride);
    sums.resize(kPanelRows * kPanelOutputs * kMaxSumFloats * static_cast<int64_t>(sizeof(float)));
  }
  LineBuffer panel;
  LineBuffer sums;
};
[[nodiscard]] PanelScratch& panel_scratch();

// The last, incomplete unit of a row of f32, bf16 or FP8 weights, continued by zeros.
struct TailUnit {
  TailUnit(const WeightView& weight, const std::byte* row) {
    const int64_t size = weight.format == WeightFormat::f32 ? 4 : weight.format == WeightFormat::bf16 ? 2 : 1;
    const int64_t begin = weight.in / kUnit * kUnit;
    std::memcpy(bytes, row + begin * size, static_cast<size_t>((weight.in - begin) * size));
  }
  alignas(64) std::byte bytes[kUnit * sizeof(float)] = {};
};

}  // namespace weft::ops::cpu
