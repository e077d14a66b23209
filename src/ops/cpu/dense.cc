#include "ops/cpu/dense.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/cpu/dense_kernels.h"
#include "ops/cpu/e2m1_tables.h"
#include "ops/cpu/targets.h"
#include "ops/math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dense.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

#include "ops/cpu/dense_f32-inl.h"

// Two vectors of float32 from the even and the odd 16-bit lanes of a vector of bf16.
[[maybe_unused]] HWY_INLINE void widen(hn::Vec<DU> words, V* even, V* odd) {
  const D d;
  *even = hn::BitCast(d, hn::ShiftLeft<16>(words));
  *odd = hn::BitCast(d, hn::And(words, hn::Set(DU(), 0xFFFF0000U)));
}

// One unit of a row, in the column order of the target: what decoding MXFP4 gives without a last shuffle.
#if HWY_TARGET == HWY_AVX3

// kOrder512: the even lanes, then the odd lanes. A lookup of 32-bit lanes gives float32 at once and is one instruction of one
// port, where Intel's cores make two of a lookup of 16-bit lanes.
HWY_INLINE void unit_mxfp4(const uint8_t* packed, uint8_t scale, V* w) {
  const hn::Vec<DU> group = hn::BitCast(DU(), hn::LoadDup128(hn::Repartition<uint8_t, D>(), packed));
  const hn::Vec<DU> codes = hn::Shr(group, hn::Load(DU(), kShifts512.data()));
  const __m512 table = _mm512_load_ps(kE2m1Floats[scale].values.data());
  w[0] = V{_mm512_permutexvar_ps(codes.raw, table)};
  w[1] = V{_mm512_permutexvar_ps(hn::ShiftRight<16>(codes).raw, table)};
}
HWY_INLINE void unit_bf16(const uint8_t* row, V* w) {
  const __m512i order = _mm512_load_si512(kOrder512.data());
  widen(hn::Vec<DU>{_mm512_permutexvar_epi16(order, _mm512_loadu_si512(row))}, w, w + 1);
}
alignas(64) constexpr std::array<uint32_t, 16> kEven512 = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
HWY_INLINE void unit_f32(const float* row, V* w) {
  const __m512i even = _mm512_load_si512(kEven512.data());
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
  const __m512 low = _mm512_loadu_ps(row);
  const __m512 high = _mm512_loadu_ps(row + 16);
  w[0] = V{_mm512_permutex2var_ps(low, even, high)};
  w[1] = V{_mm512_permutex2var_ps(low, odd, high)};
}

#elif HWY_TARGET == HWY_AVX2

// For both halves of a unit: columns 0 4 8 12, 1 5 9 13, then 2 6 10 14, 3 7 11 15.
HWY_INLINE void unit_mxfp4(const uint8_t* packed, uint8_t scale, V* w) {
  const hn::Repartition<uint8_t, D> d8;
  alignas(32) constexpr std::array<uint32_t, 8> kShifts = {0, 0, 0, 0, 4, 4, 4, 4};
  const auto group = hn::BitCast(DU(), hn::LoadDup128(d8, packed));
  const auto codes = hn::And(hn::BitCast(d8, hn::Shr(group, hn::Load(DU(), kShifts.data()))), hn::Set(d8, 15));
  const E2m1Bytes& table = kE2m1Bytes[scale];
  const auto low = hn::TableLookupBytes(hn::LoadDup128(d8, table.low.data()), codes);
  const auto high = hn::TableLookupBytes(hn::LoadDup128(d8, table.high.data()), codes);
  widen(hn::BitCast(DU(), hn::InterleaveLower(d8, low, high)), w, w + 1);
  widen(hn::BitCast(DU(), hn::InterleaveUpper(d8, low, high)), w + 2, w + 3);
}
HWY_INLINE void unit_bf16(const uint8_t* row, V* w) {
  const hn::Repartition<uint8_t, D> d8;
  alignas(32) constexpr std::array<uint8_t, 16> kPairs = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  alignas(32) constexpr std::array<int32_t, 8> kQuarters = {0, 1, 4, 5, 2, 3, 6, 7};
  const auto pairs = hn::LoadDup128(d8, kPairs.data());
  const auto quarters = hn::SetTableIndices(DU(), kQuarters.data());
  for (int half = 0; half < 2; ++half) {
    const auto paired = hn::TableLookupBytes(hn::LoadU(d8, row + half * 32), pairs);
    widen(hn::TableLookupLanes(hn::BitCast(DU(), paired), quarters), w + 2 * half, w + 2 * half + 1);
  }
}
HWY_INLINE void unit_f32(const float* row, V* w) {
  const D d;
  const hn::Repartition<double, D> d64;
  alignas(32) constexpr std::array<int32_t, 8> kPairs = {0, 4, 2, 6, 1, 5, 3, 7};
  const auto pairs = hn::SetTableIndices(d, kPairs.data());
  for (int half = 0; half < 2; ++half) {
    const auto first = hn::BitCast(d64, hn::TableLookupLanes(hn::LoadU(d, row + half * 16), pairs));
    const auto second = hn::BitCast(d64, hn::TableLookupLanes(hn::LoadU(d, row + half * 16 + 8), pairs));
    w[2 * half] = hn::BitCast(d, hn::InterleaveLower(d64, first, second));
    w[2 * half + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, first, second));
  }
}

#else  // ascending columns

HWY_INLINE void unit_f32(const float* row, V* w) {
  for (int64_t v = 0; v < kUnit / kLanes; ++v) w[v] = hn::LoadU(D(), row + v * kLanes);
}
HWY_INLINE void unit_bf16(const uint8_t* row, V* w) {
  const hn::Rebind<uint16_t, D> d16;
  for (int v = 0; v < kUnit / kLanes; ++v) {
    alignas(64) uint16_t words[kLanes];
    std::memcpy(words, row + v * static_cast<int64_t>(sizeof(words)), sizeof(words));
    w[v] = hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::Load(d16, words))));
  }
}
HWY_INLINE void unit_mxfp4(const uint8_t* packed, uint8_t scale, V* w) {
  alignas(64) uint8_t words[2 * kUnit];
#if HWY_TARGET == HWY_SCALAR
  for (int64_t j = 0; j < kUnit / 2; ++j) {
    std::memcpy(words + 4 * j, &kE2m1Words[scale].words[packed[j] & 15U], 2);
    std::memcpy(words + 4 * j + 2, &kE2m1Words[scale].words[packed[j] >> 4U], 2);
  }
#else
  const hn::FixedTag<uint8_t, 16> d8;
  const auto group = hn::LoadU(d8, packed);
  const auto even = hn::And(group, hn::Set(d8, 15));
  const auto odd = hn::ShiftRight<4>(group);
  const auto low_table = hn::Load(d8, kE2m1Bytes[scale].low.data());
  const auto high_table = hn::Load(d8, kE2m1Bytes[scale].high.data());
  for (int half = 0; half < 2; ++half) {
    const auto codes = half == 0 ? hn::InterleaveLower(d8, even, odd) : hn::InterleaveUpper(d8, even, odd);
    const auto low = hn::TableLookupBytes(low_table, codes);
    const auto high = hn::TableLookupBytes(high_table, codes);
    hn::Store(hn::InterleaveLower(d8, low, high), d8, words + half * kUnit);
    hn::Store(hn::InterleaveUpper(d8, low, high), d8, words + half * kUnit + 16);
  }
#endif
  unit_bf16(words, w);
}

#endif

struct F32Kernel : F32Arithmetic {
  template <WeightFormat kFormat>
  static HWY_INLINE void unit(const std::byte* row, const std::byte* scales, int64_t unit, Vec* w) {
    if constexpr (kFormat == WeightFormat::f32) {
      unit_f32(reinterpret_cast<const float*>(row) + unit * kUnit, w);
    } else if constexpr (kFormat == WeightFormat::bf16) {
      unit_bf16(reinterpret_cast<const uint8_t*>(row) + unit * kUnit * 2, w);
    } else {
      unit_mxfp4(reinterpret_cast<const uint8_t*>(row) + unit * (kUnit / 2), static_cast<uint8_t>(scales[unit]), w);
    }
  }
};

#include "ops/cpu/dense_blocks-inl.h"

void dense_f32(const DenseProduct& product, int64_t begin, int64_t end) {
  switch (product.weight.format) {
    case WeightFormat::f32: return dense_of<F32Kernel, UnitReader<F32Kernel, WeightFormat::f32>>(product, begin, end);
    case WeightFormat::bf16: return dense_of<F32Kernel, UnitReader<F32Kernel, WeightFormat::bf16>>(product, begin, end);
    case WeightFormat::mxfp4: return dense_of<F32Kernel, UnitReader<F32Kernel, WeightFormat::mxfp4>>(product, begin, end);
    case WeightFormat::fp8_block:
    case WeightFormat::affine: return;  // dense_quantized
  }
}

void pack(const float* x, int64_t count, float* out) {
  V v[F32Kernel::kUnitVecs];
  alignas(64) float tail[kUnit] = {};
  for (int64_t column = 0; column < count; column += kUnit) {
    const float* from = x + column;
    if (count - column < kUnit) from = (std::copy_n(from, count - column, tail), tail);
    unit_f32(from, v);
    for (int64_t i = 0; i < F32Kernel::kUnitVecs; ++i) hn::Store(v[i], D(), out + column + i * kLanes);
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

bool is_avx3() { return HWY_TARGET == HWY_AVX3; }

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(dense_f32);
HWY_EXPORT(pack);
HWY_EXPORT(target_name);
HWY_EXPORT(is_avx3);

PanelScratch& panel_scratch() {
  thread_local PanelScratch scratch;
  return scratch;
}

void pack_f32(const float* x, int64_t count, float* out) { HWY_DYNAMIC_DISPATCH(pack)(x, count, out); }

void dense_rows(const DenseProduct& product, int64_t begin, int64_t end) {
  if (product.form == RowForm::bf16) return dense_bf16(product, begin, end);
  if (is_quantized(product.weight.format)) return dense_quantized(product, begin, end);
  HWY_DYNAMIC_DISPATCH(dense_f32)(product, begin, end);
}

// Not on Intel's cores: there (family 6 model 207) vdpbf16ps takes the ports of four multiply-adds, and products of float32 are
// faster for one row of MXFP4 and for many rows. Asks for the chosen target, not for hwy::SupportedTargets(): that executes
// CPUID each time, which takes a virtual machine 17 us.
bool bf16_products() {
#if HWY_ARCH_X86_64
  return HWY_DYNAMIC_DISPATCH(is_avx3)() && __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_is("intel") == 0;
#else
  return false;
#endif
}

const char* dispatch_target() { return bf16_products() ? "AVX3_BF16" : HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
