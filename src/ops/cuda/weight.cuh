// Stored weights in registers: one element, or eight columns of a row at a time, and the products made of them.
#pragma once

#include "ops/cuda/common.cuh"

namespace weft::ops::cuda {

inline constexpr int kColumns = 8;  // columns of a row that a lane takes at a time: 16 bytes of bf16, 8 of FP8, 4 of MXFP4

__device__ inline float e8m0(uint8_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000U);
  return code == 0 ? __uint_as_float(0x00400000U) : __uint_as_float(static_cast<uint32_t>(code) << 23);
}
__device__ inline float bf16_at(const std::byte* data, int64_t index) {
  return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(data)[index]) << 16);
}

// Bits of a float16 that is 2^-14 times the E2M1 value of the code in bits 0 to 3, and the same for bits 16 to 19 in the upper
// half: sign to bit 15, exponent and mantissa to bits 9 to 11. Subnormal codes become subnormal float16 values, so all are
// exact.
__device__ inline uint32_t e2m1_pair(uint32_t codes) { return ((codes & 0x00070007U) << 9) | ((codes & 0x00080008U) << 12); }
inline constexpr float kE2m1Factor = 16384.0F;
__device__ inline float half_bits(uint32_t bits) {
  float value;
  asm("{ .reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "h"(static_cast<uint16_t>(bits)));
  return value;
}

// E4M3 is the upper half of a float16 but for the exponent's bias: the bits moved there are 2^-8 times the value, subnormals
// included.
__device__ inline float e4m3(uint32_t code) {
  if ((code & 0x7fU) == 0x7fU) return __uint_as_float(0x7fc00000U);
  return half_bits((code & 0x80U) << 8 | (code & 0x7fU) << 7) * 256.0F;
}
__device__ inline float scale_at(ScaleType type, const std::byte* scales, int64_t index) {
  if (type == ScaleType::f32) return reinterpret_cast<const float*>(scales)[index];
  if (type == ScaleType::bf16) return bf16_at(scales, index);
  return half_bits(reinterpret_cast<const uint16_t*>(scales)[index]);
}
__device__ inline float block_scale(const WeightView& weight, int64_t row, int64_t column) {  // fp8_block
  const std::byte* scales = weight.scales + (weight.block_row + row) / kScaleBlock * weight.scale_row_bytes();
  return scale_at(weight.scale_type, scales, column / kScaleBlock);
}
// code * scale + bias with two roundings, as weight.h says: never a fused multiply-add.
__device__ inline float affine(uint32_t code, float scale, float bias) {
  return __fadd_rn(__fmul_rn(static_cast<float>(code), scale), bias);
}

// Element [row, column].
__device__ inline float weight_at(const WeightView& weight, int64_t row, int64_t column) {
  const int64_t index = row * weight.in + column;
  if (weight.format == WeightFormat::f32) return reinterpret_cast<const float*>(weight.data)[index];
  if (weight.format == WeightFormat::bf16) return bf16_at(weight.data, index);
  if (weight.format == WeightFormat::fp8_block) {
    const float value = e4m3(static_cast<uint8_t>(weight.data[index]));
    return __fmul_rn(value, block_scale(weight, row, column));
  }
  if (weight.format == WeightFormat::affine) {
    const int64_t bit = index * weight.bits;  // rows are whole bytes
    const auto shift = static_cast<uint32_t>(bit % 8);
    uint32_t word = static_cast<uint8_t>(weight.data[bit / 8]);
    if (shift + weight.bits > 8) word |= static_cast<uint32_t>(weight.data[bit / 8 + 1]) << 8;
    const int64_t group = index / weight.group;
    return affine(word >> shift & ((1U << weight.bits) - 1U), scale_at(weight.scale_type, weight.scales, group),
                  scale_at(weight.scale_type, weight.biases, group));
  }
  const auto pair = static_cast<uint32_t>(weight.data[index / 2]);
  const float value = half_bits(e2m1_pair((index % 2 == 0 ? pair : pair >> 4) & 15U)) * kE2m1Factor;
  return value * e8m0(static_cast<uint8_t>(weight.scales[index / 32]));
}

// Columns [column, column + 8) of a row, times `factor`; zero beyond the row's end. kVector: the row's start is aligned and the
// columns are whole.
struct Columns {
  float value[kColumns];
  float factor = 1.0F;
};
template <WeightFormat kFormat, bool kVector>
__device__ inline Columns load_columns(const WeightView& weight, int64_t row, int64_t column) {
  Columns out;
  const int64_t index = row * weight.in + column;
  if constexpr (!kVector) {
    for (int j = 0; j < kColumns; ++j) out.value[j] = column + j < weight.in ? weight_at(weight, row, column + j) : 0.0F;
  } else if constexpr (kFormat == WeightFormat::f32) {
    const auto* from = reinterpret_cast<const float4*>(weight.data + index * 4);
    const float4 a = __ldcs(from);
    const float4 b = __ldcs(from + 1);
    out.value[0] = a.x, out.value[1] = a.y, out.value[2] = a.z, out.value[3] = a.w;
    out.value[4] = b.x, out.value[5] = b.y, out.value[6] = b.z, out.value[7] = b.w;
  } else if constexpr (kFormat == WeightFormat::bf16) {
    const uint4 a = __ldcs(reinterpret_cast<const uint4*>(weight.data + index * 2));
    const uint32_t words[4] = {a.x, a.y, a.z, a.w};
    for (int j = 0; j < 4; ++j) {
      out.value[2 * j] = __uint_as_float(words[j] << 16);
      out.value[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000U);
    }
  } else if constexpr (kFormat == WeightFormat::fp8_block) {
    const uint2 codes = __ldcs(reinterpret_cast<const uint2*>(weight.data + index));
    const float scale = block_scale(weight, row, column);
    for (int j = 0; j < kColumns; ++j) {
      out.value[j] = __fmul_rn(e4m3((j < 4 ? codes.x : codes.y) >> (j % 4 * 8) & 0xffU), scale);
    }
  } else if constexpr (kFormat == WeightFormat::affine) {
    // Eight codes are `bits` bytes and begin at a byte.
    const int64_t group = index / weight.group;
    const float scale = scale_at(weight.scale_type, weight.scales, group);
    const float bias = scale_at(weight.scale_type, weight.biases, group);
    const std::byte* from = weight.data + index / kColumns * weight.bits;
    uint64_t codes = 0;
    if (weight.bits == 4) {
      codes = __ldcs(reinterpret_cast<const uint32_t*>(from));
    } else if (weight.bits == 8) {
      const uint2 words = __ldcs(reinterpret_cast<const uint2*>(from));
      codes = static_cast<uint64_t>(words.y) << 32 | words.x;
    } else {
      for (int i = 0; i < weight.bits; ++i) codes |= static_cast<uint64_t>(static_cast<uint8_t>(from[i])) << (8 * i);
    }
    const uint32_t mask = (1U << weight.bits) - 1U;
    for (int j = 0; j < kColumns; ++j) {
      out.value[j] = affine(static_cast<uint32_t>(codes >> (j * weight.bits)) & mask, scale, bias);
    }
  } else {
    const uint32_t codes = __ldcs(reinterpret_cast<const uint32_t*>(weight.data + index / 2));
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = e2m1_pair(codes >> (4 * j));
      out.value[j] = half_bits(pair);
      out.value[j + 4] = half_bits(pair >> 16);
    }
    out.factor = e8m0(static_cast<uint8_t>(weight.scales[index / 32]));
  }
  return out;
}
template <bool kVector>
__device__ inline Columns load_activations(const float* x, int64_t column, int64_t size) {
  Columns out;
  if constexpr (kVector) {
    const float4 a = *reinterpret_cast<const float4*>(x + column);
    const float4 b = *reinterpret_cast<const float4*>(x + column + 4);
    out.value[0] = a.x, out.value[1] = a.y, out.value[2] = a.z, out.value[3] = a.w;
    out.value[4] = b.x, out.value[5] = b.y, out.value[6] = b.z, out.value[7] = b.w;
  } else {
    for (int j = 0; j < kColumns; ++j) out.value[j] = column + j < size ? x[column + j] : 0.0F;
  }
  return out;
}

// sum[o][r] += this lane's share of <row first + o of the weight, x + r * stride>, over the columns that begin at
// 8 (lane + 32 part), in steps of 8 * 32 * parts. Rows and outputs beyond `outputs` and `rows` repeat the last one.
template <WeightFormat kFormat, bool kVector, int kOutputs, int kRows>
__device__ inline void lane_dots(const WeightView& weight, int64_t first, int64_t outputs, const float* x, int64_t stride,
                                 int64_t rows, int part, int parts, float (&sum)[kOutputs][kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t c = kColumns * (lane + kWarp * part); c < weight.in; c += static_cast<int64_t>(kColumns) * kWarp * parts) {
    Columns w[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      w[o] = load_columns<kFormat, kVector>(weight, min(first + o, outputs - 1), c);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Columns v = load_activations<kVector>(x + min(static_cast<int64_t>(r), rows - 1) * stride, c, weight.in);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        if constexpr (kFormat == WeightFormat::mxfp4 && kVector) {
          float partial = 0.0F;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) partial += w[o].value[j] * v.value[j];
          sum[o][r] += partial * kE2m1Factor * w[o].factor;
        } else {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) sum[o][r] += w[o].value[j] * v.value[j];
        }
      }
    }
  }
}

// Whether kVector holds for the weight and for rows of x with the same width.
[[nodiscard]] inline bool vector_loads(const WeightView& weight, const void* x) {
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return weight.in % kColumns == 0 && aligned(weight.data) && aligned(x);
}

// Calls body with the weight's format and vector flag as compile-time constants.
template <class Body>
void with_format(WeightFormat format, bool vector, const Body& body) {
  const auto with_vector = [&](auto constant) {
    if (vector) {
      body(constant, std::true_type());
    } else {
      body(constant, std::false_type());
    }
  };
  switch (format) {
    case WeightFormat::f32: return with_vector(std::integral_constant<WeightFormat, WeightFormat::f32>());
    case WeightFormat::bf16: return with_vector(std::integral_constant<WeightFormat, WeightFormat::bf16>());
    case WeightFormat::mxfp4: return with_vector(std::integral_constant<WeightFormat, WeightFormat::mxfp4>());
    case WeightFormat::fp8_block: return with_vector(std::integral_constant<WeightFormat, WeightFormat::fp8_block>());
    case WeightFormat::affine: return with_vector(std::integral_constant<WeightFormat, WeightFormat::affine>());
  }
}

}  // namespace weft::ops::cuda
