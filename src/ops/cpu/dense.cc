#include "ops/cpu/dense.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ops/cpu/targets.h"
#include "ops/math.h"
#include "ops/sum.h"
#include "ops/weight_decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dense.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef WEFT_OPS_CPU_DENSE_ONCE
#define WEFT_OPS_CPU_DENSE_ONCE
namespace weft::ops::cpu {

inline constexpr int64_t kVirtual = 16;       // lanes of one sum
inline constexpr int64_t kUnit = 32;          // columns decoded together: one MXFP4 group
inline constexpr int64_t kPanelOutputs = 16;  // a panel of decoded weights: 16 x 256 floats = 16 KiB, half of a 32 KiB L1
inline constexpr int64_t kPanelColumns = 256;
inline constexpr int64_t kPanelRows = 64;  // rows that share one decoded panel; their sums take 64 x 16 x 64 bytes in L2
inline constexpr int64_t kDirectRows = 4;  // up to here weights are decoded into registers

// Half of 2^(code - 127): the integer table below holds twice the E2M1 values. All products are exact.
constexpr std::array<float, 256> make_half_scales() {
  std::array<float, 256> table{};
  for (size_t code = 0; code < 255; ++code) table[code] = e8m0_to_f32(static_cast<uint8_t>(code)) * 0.5F;
  table[255] = e8m0_to_f32(255);  // NaN, with which clang does no constant arithmetic
  return table;
}
inline constexpr std::array<float, 256> kHalfScales = make_half_scales();
alignas(16) inline constexpr std::array<int8_t, 16> kTwiceE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Bytes of one row of a weight.
inline int64_t row_bytes(const WeightView& weight) {
  return weight.format == WeightFormat::f32    ? weight.in * 4
         : weight.format == WeightFormat::bf16 ? weight.in * 2
                                               : weight.in / 2;
}

// Columns [begin, begin + count) of a row, zeros up to kVirtual. Not for MXFP4, whose rows are whole units.
inline void decode_tail(WeightFormat format, const std::byte* row, int64_t begin, int64_t count, float* out) {
  std::fill_n(out, kVirtual, 0.0F);
  if (format == WeightFormat::f32) {
    std::memcpy(out, row + begin * 4, static_cast<size_t>(count * 4));
    return;
  }
  for (int64_t c = 0; c < count; ++c) {
    uint16_t bits = 0;
    std::memcpy(&bits, row + (begin + c) * 2, 2);
    out[c] = bf16_to_f32(bits);
  }
}

// Sums of up to kPanelRows rows and the decoded panel.
struct PanelScratch {
  std::vector<float> panel = std::vector<float>(kPanelOutputs * kPanelColumns);
  std::vector<float> sums = std::vector<float>(kPanelRows * kPanelOutputs * kVirtual);
  std::vector<float> tails = std::vector<float>(kPanelRows * kVirtual);  // last columns of the rows, padded with zeros
};
inline PanelScratch& panel_scratch() {
  thread_local PanelScratch scratch;
  return scratch;
}

}  // namespace weft::ops::cpu
#endif  // WEFT_OPS_CPU_DENSE_ONCE

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kVirtual>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kVecs = kVirtual / kLanes;  // vectors of one 16-lane sum

// The tag of narrower stored elements that widen to one vector of D.
template <class T>
using Stored = hn::Rebind<T, D>;

// One unit of kUnit columns of a row, as 2 * kVecs vectors.
template <WeightFormat kFormat>
HWY_INLINE void load_unit(const std::byte* row, const std::byte* scales, int64_t unit, V* HWY_RESTRICT w) {
  const D d;
  if constexpr (kFormat == WeightFormat::f32) {
    const auto* p = reinterpret_cast<const float*>(row) + unit * kUnit;
    for (int64_t v = 0; v < 2 * kVecs; ++v) w[v] = hn::LoadU(d, p + v * kLanes);
  } else if constexpr (kFormat == WeightFormat::bf16) {
    const auto* p = reinterpret_cast<const uint16_t*>(row) + unit * kUnit;
    for (int64_t v = 0; v < 2 * kVecs; ++v) {
      const auto wide = hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(Stored<uint16_t>(), p + v * kLanes));
      w[v] = hn::BitCast(d, hn::ShiftLeft<16>(wide));
    }
  } else {
    alignas(32) int8_t values[kUnit];
#if HWY_TARGET == HWY_SCALAR
    for (int64_t j = 0; j < kUnit / 2; ++j) {
      const auto pair = static_cast<uint8_t>(row[unit * (kUnit / 2) + j]);
      values[2 * j] = kTwiceE2m1[pair & 15U];
      values[2 * j + 1] = kTwiceE2m1[pair >> 4U];
    }
#else
    const hn::FixedTag<uint8_t, 16> d8;
    const hn::FixedTag<int8_t, 16> di8;
    const auto packed = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row) + unit * (kUnit / 2));
    const auto low = hn::And(packed, hn::Set(d8, 0x0F));
    const auto high = hn::ShiftRight<4>(packed);
    const auto table = hn::Load(di8, kTwiceE2m1.data());
    hn::Store(hn::TableLookupBytes(table, hn::BitCast(di8, hn::InterleaveLower(d8, low, high))), di8, values);
    hn::Store(hn::TableLookupBytes(table, hn::BitCast(di8, hn::InterleaveUpper(d8, low, high))), di8, values + 16);
#endif
    const V scale = hn::Set(d, kHalfScales[static_cast<uint8_t>(scales[unit])]);
    for (int64_t v = 0; v < 2 * kVecs; ++v) {
      const auto wide = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(Stored<int8_t>(), values + v * kLanes));
      w[v] = hn::Mul(hn::ConvertTo(d, wide), scale);
    }
  }
}

HWY_INLINE float fold(const V* sum) {
  const D d;
  alignas(64) float lanes[kVirtual];
  for (int64_t v = 0; v < kVecs; ++v) hn::Store(sum[v], d, lanes + v * kLanes);
  return fold16(lanes);
}

// kOut outputs from `o` on, for kRows rows; weights are decoded into registers.
template <WeightFormat kFormat, int kRows, int kOut>
HWY_NOINLINE void direct(const WeightView& weight, int64_t o, const float* const* x, float* const* y, bool rounds) {
  const D d;
  const int64_t stride = row_bytes(weight);
  const std::byte* row[kOut];
  const std::byte* scales[kOut];
  for (int i = 0; i < kOut; ++i) {
    row[i] = weight.data + (o + i) * stride;
    scales[i] = kFormat == WeightFormat::mxfp4 ? weight.scales + (o + i) * (weight.in / kMxGroup) : nullptr;
  }
  const float* in[kRows];
  for (int r = 0; r < kRows; ++r) in[r] = x[r];

  V sum[kRows][kOut][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) {
      for (int64_t v = 0; v < kVecs; ++v) sum[r][i][v] = hn::Zero(d);
    }
  }
  const int64_t units = weight.in / kUnit;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int i = 0; i < kOut; ++i) {
      V w[2 * kVecs];
      load_unit<kFormat>(row[i], scales[i], unit, w);
      for (int64_t v = 0; v < 2 * kVecs; ++v) {
        for (int r = 0; r < kRows; ++r) {
          const V value = hn::LoadU(d, in[r] + unit * kUnit + v * kLanes);
          sum[r][i][v % kVecs] = hn::MulAdd(w[v], value, sum[r][i][v % kVecs]);
        }
      }
    }
  }
  if constexpr (kFormat != WeightFormat::mxfp4) {
    for (int64_t begin = units * kUnit; begin < weight.in; begin += kVirtual) {
      const int64_t count = std::min(kVirtual, weight.in - begin);
      alignas(64) float values[kRows][kVirtual] = {};
      for (int r = 0; r < kRows; ++r) std::copy_n(in[r] + begin, count, values[r]);
      for (int i = 0; i < kOut; ++i) {
        alignas(64) float w[kVirtual];
        decode_tail(kFormat, row[i], begin, count, w);
        for (int64_t v = 0; v < kVecs; ++v) {
          for (int r = 0; r < kRows; ++r) {
            sum[r][i][v] = hn::MulAdd(hn::Load(d, w + v * kLanes), hn::Load(d, values[r] + v * kLanes), sum[r][i][v]);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) y[r][o + i] = round_if(rounds, fold(sum[r][i]));
  }
}

template <WeightFormat kFormat, int kRows, int kOut>
void direct_range(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, float* const* y, bool rounds) {
  int64_t o = begin;
  for (; o + kOut <= end; o += kOut) direct<kFormat, kRows, kOut>(weight, o, x, y, rounds);
  for (; o < end; ++o) direct<kFormat, kRows, 1>(weight, o, x, y, rounds);
}

// Adds `steps` times 16 columns of a decoded panel to the sums of kRows rows and kOut outputs.
template <int kRows, int kOut>
HWY_INLINE void panel_block(const float* HWY_RESTRICT panel, const float* const* x, int64_t steps, float* HWY_RESTRICT sums) {
  const D d;
  const float* in[kRows];
  for (int r = 0; r < kRows; ++r) in[r] = x[r];
  V sum[kRows][kOut][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) {
      for (int64_t v = 0; v < kVecs; ++v) {
        sum[r][i][v] = hn::LoadU(d, sums + (r * kPanelOutputs + i) * kVirtual + v * kLanes);
      }
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t v = 0; v < kVecs; ++v) {
      const int64_t at = step * kVirtual + v * kLanes;
      V w[kOut];
      for (int i = 0; i < kOut; ++i) w[i] = hn::LoadU(d, panel + i * kPanelColumns + at);
      for (int r = 0; r < kRows; ++r) {
        const V value = hn::LoadU(d, in[r] + at);
        for (int i = 0; i < kOut; ++i) sum[r][i][v] = hn::MulAdd(w[i], value, sum[r][i][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) {
      for (int64_t v = 0; v < kVecs; ++v) {
        hn::StoreU(sum[r][i][v], d, sums + (r * kPanelOutputs + i) * kVirtual + v * kLanes);
      }
    }
  }
}

// 12 sums in registers (of 16; 24 with 16-lane vectors): 3 rows by 2 (4) outputs.
constexpr int kBlockOutputs = kVecs == 1 ? 4 : 2;

// kRows rows and all outputs of a panel: the rows' columns stay in L1 beside the panel.
template <int kRows>
HWY_NOINLINE void panel_outputs(const float* panel, int64_t outputs, const float* const* x, int64_t steps, float* sums) {
  for (int64_t i = 0; i < outputs; i += kBlockOutputs) {
    panel_block<kRows, kBlockOutputs>(panel + i * kPanelColumns, x, steps, sums + i * kVirtual);
  }
}

void panel_rows(const float* panel, int64_t outputs, const float* const* x, int64_t rows, int64_t steps, float* sums) {
  constexpr int64_t kRowSums = kPanelOutputs * kVirtual;
  int64_t r = 0;
  for (; r + 3 <= rows; r += 3) panel_outputs<3>(panel, outputs, x + r, steps, sums + r * kRowSums);
  if (rows - r == 2) panel_outputs<2>(panel, outputs, x + r, steps, sums + r * kRowSums);
  if (rows - r == 1) panel_outputs<1>(panel, outputs, x + r, steps, sums + r * kRowSums);
}

// Up to kPanelRows rows and kPanelOutputs outputs: each block of columns is decoded once for all rows.
template <WeightFormat kFormat>
void panel_tile(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, int64_t rows, float* const* y,
                bool rounds) {
  const D d;
  PanelScratch& scratch = panel_scratch();
  float* panel = scratch.panel.data();
  float* sums = scratch.sums.data();
  const int64_t stride = row_bytes(weight);
  const int64_t outputs = end - begin;
  std::fill_n(sums, rows * kPanelOutputs * kVirtual, 0.0F);
  if (outputs < kPanelOutputs) std::fill_n(panel, kPanelOutputs * kPanelColumns, 0.0F);
  const float* in[kPanelRows];
  const int64_t whole = weight.in / kUnit * kUnit;
  for (int64_t column = 0; column < whole; column += kPanelColumns) {
    const int64_t count = std::min(kPanelColumns, whole - column);
    for (int64_t i = 0; i < outputs; ++i) {
      const std::byte* row = weight.data + (begin + i) * stride;
      const std::byte* scales = kFormat == WeightFormat::mxfp4 ? weight.scales + (begin + i) * (weight.in / kMxGroup) : nullptr;
      for (int64_t unit = 0; unit < count / kUnit; ++unit) {
        V w[2 * kVecs];
        load_unit<kFormat>(row, scales, column / kUnit + unit, w);
        for (int64_t v = 0; v < 2 * kVecs; ++v) hn::StoreU(w[v], d, panel + i * kPanelColumns + unit * kUnit + v * kLanes);
      }
    }
    for (int64_t r = 0; r < rows; ++r) in[r] = x[r] + column;
    panel_rows(panel, outputs, in, rows, count / kVirtual, sums);
  }
  for (int64_t column = whole; column < weight.in; column += kVirtual) {
    const int64_t count = std::min(kVirtual, weight.in - column);
    for (int64_t i = 0; i < outputs; ++i) {
      decode_tail(kFormat, weight.data + (begin + i) * stride, column, count, panel + i * kPanelColumns);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* tail = scratch.tails.data() + r * kVirtual;
      std::fill_n(std::copy_n(x[r] + column, count, tail), kVirtual - count, 0.0F);
      in[r] = tail;
    }
    panel_rows(panel, outputs, in, rows, 1, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < outputs; ++i) {
      y[r][begin + i] = round_if(rounds, fold16(sums + (r * kPanelOutputs + i) * kVirtual));
    }
  }
}

template <WeightFormat kFormat>
void dense_of(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, int64_t rows, float* const* y,
              bool rounds) {
  switch (rows) {
    case 0: return;
    case 1: return direct_range<kFormat, 1, 4>(weight, begin, end, x, y, rounds);
    case 2: return direct_range<kFormat, 2, 2>(weight, begin, end, x, y, rounds);
    case 3: return direct_range<kFormat, 3, 1>(weight, begin, end, x, y, rounds);
    case kDirectRows: return direct_range<kFormat, 4, 1>(weight, begin, end, x, y, rounds);
    default: break;
  }
  for (int64_t o = begin; o < end; o += kPanelOutputs) {
    for (int64_t r = 0; r < rows; r += kPanelRows) {
      panel_tile<kFormat>(weight, o, std::min(o + kPanelOutputs, end), x + r, std::min(kPanelRows, rows - r), y + r, rounds);
    }
  }
}

void dense(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, int64_t rows, float* const* y,
           bool rounds) {
  switch (weight.format) {
    case WeightFormat::f32: return dense_of<WeightFormat::f32>(weight, begin, end, x, rows, y, rounds);
    case WeightFormat::bf16: return dense_of<WeightFormat::bf16>(weight, begin, end, x, rows, y, rounds);
    case WeightFormat::mxfp4: return dense_of<WeightFormat::mxfp4>(weight, begin, end, x, rows, y, rounds);
  }
}

// kColumns vectors of columns for kRows rows.
template <int kRows, int kColumns>
HWY_INLINE void transposed_block(const float* HWY_RESTRICT matrix, int64_t stride, int64_t count, const float* const* a,
                                 float* const* y, int64_t column) {
  const D d;
  const float* factors[kRows];
  for (int r = 0; r < kRows; ++r) factors[r] = a[r];
  V sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumns; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < count; ++i) {
    V m[kColumns];
    for (int v = 0; v < kColumns; ++v) m[v] = hn::LoadU(d, matrix + i * stride + column + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, factors[r][i]);
      for (int v = 0; v < kColumns; ++v) sum[r][v] = hn::MulAdd(factor, m[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumns; ++v) hn::StoreU(sum[r][v], d, y[r] + column + v * kLanes);
  }
}

template <int kRows>
HWY_NOINLINE void transposed_group(const float* matrix, int64_t stride, int64_t count, int64_t size, const float* const* a,
                                   float* const* y) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= size; column += 4 * kLanes) {
    transposed_block<kRows, 4>(matrix, stride, count, a, y, column);
  }
  for (; column + kLanes <= size; column += kLanes) transposed_block<kRows, 1>(matrix, stride, count, a, y, column);
  const hn::CappedTag<float, 1> d1;  // the same fused operation for the last columns
  for (; column < size; ++column) {
    for (int r = 0; r < kRows; ++r) {
      auto sum = hn::Zero(d1);
      for (int64_t i = 0; i < count; ++i) {
        sum = hn::MulAdd(hn::Set(d1, a[r][i]), hn::LoadU(d1, matrix + i * stride + column), sum);
      }
      hn::StoreU(sum, d1, y[r] + column);
    }
  }
}

void transposed(const float* matrix, int64_t stride, int64_t count, int64_t size, const float* const* a, int64_t rows,
                float* const* y) {
  int64_t r = 0;
  for (; r + 3 <= rows; r += 3) transposed_group<3>(matrix, stride, count, size, a + r, y + r);
  if (rows - r == 2) transposed_group<2>(matrix, stride, count, size, a + r, y + r);
  if (rows - r == 1) transposed_group<1>(matrix, stride, count, size, a + r, y + r);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(dense);
HWY_EXPORT(transposed);
HWY_EXPORT(target_name);

void dense_rows(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, int64_t rows, float* const* y,
                bool rounds) {
  HWY_DYNAMIC_DISPATCH(dense)(weight, begin, end, x, rows, y, rounds);
}

void transposed_rows(const float* matrix, int64_t stride, int64_t count, int64_t size, const float* const* a, int64_t rows,
                     float* const* y) {
  HWY_DYNAMIC_DISPATCH(transposed)(matrix, stride, count, size, a, rows, y);
}

const char* dispatch_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
