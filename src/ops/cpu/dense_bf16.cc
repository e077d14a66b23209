// Dense products on AVX512_BF16, whose vdpbf16ps multiplies pairs of bf16 values and adds both products to a float32 lane:
// twice the products of a float32 multiply-add, and neither bf16 weights nor decoded MXFP4 need widening. Highway 1.0.3 has no
// target for it. Lane j of a unit takes the two columns of the 16-bit lanes 2j and 2j+1 of kOrder512.
#include <algorithm>

#include <hwy/base.h>

#include "ops/cpu/dense_kernels.h"
#include "ops/cpu/e2m1_tables.h"
#include "ops/math.h"

#if HWY_ARCH_X86_64

#if HWY_COMPILER_GCC && !HWY_COMPILER_CLANG
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 finds its own _mm512_undefined_ps uninitialised
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")
namespace weft::ops::cpu {
namespace {

struct Bf16Kernel {
  using Element = uint16_t;
  using Vec = __m512i;
  using Sum = __m512;
  static constexpr int kUnitVecs = 1;
  static constexpr int kSumVecs = 1;
  static constexpr int kBlockRows = 6;
  static constexpr int kBlockOutputs = 4;
  static constexpr bool kFastDecode = true;

  static HWY_INLINE Vec load(const uint16_t* p) { return _mm512_load_si512(p); }
  static HWY_INLINE void store(Vec v, uint16_t* p) { _mm512_store_si512(p, v); }
  static HWY_INLINE Sum zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE Sum load_sum(const float* p) { return _mm512_load_ps(p); }
  static HWY_INLINE void store_sum(Sum sum, float* p) { _mm512_store_ps(p, sum); }
  static HWY_INLINE Sum multiply_add(Vec w, Vec x, Sum sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
  static HWY_INLINE float fold(const Sum* sum) { return _mm512_reduce_add_ps(*sum); }
  template <WeightFormat kFormat>
  static HWY_INLINE void unit(const std::byte* row, const std::byte* scales, int64_t unit, Vec* w) {
    if constexpr (kFormat == WeightFormat::bf16) {
      *w = _mm512_permutexvar_epi16(_mm512_load_si512(kOrder512.data()), _mm512_loadu_si512(row + unit * kUnit * 2));
    } else {
      const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + unit * (kUnit / 2)));
      const __m512i codes = _mm512_srlv_epi32(_mm512_broadcast_i32x4(packed), _mm512_load_si512(kShifts512.data()));
      const E2m1Words& table = kE2m1Words[static_cast<uint8_t>(scales[unit])];
      *w = _mm512_permutexvar_epi16(codes, _mm512_load_si512(table.words.data()));
    }
  }
};

#include "ops/cpu/dense_blocks-inl.h"

// 16-bit lane i of a packed unit is the upper half of column kOrder512[i].
constexpr std::array<uint16_t, 32> make_upper_halves() {
  std::array<uint16_t, 32> halves{};
  for (size_t i = 0; i < 32; ++i) halves[i] = static_cast<uint16_t>(2 * kOrder512[i] + 1);
  return halves;
}
alignas(64) constexpr std::array<uint16_t, 32> kUpperHalves = make_upper_halves();

}  // namespace

bool pack_bf16(const float* x, int64_t count, uint16_t* out) {
  const __m512i halves = _mm512_load_si512(kUpperHalves.data());
  __m512i all = _mm512_setzero_si512();
  alignas(64) float tail[kUnit] = {};
  for (int64_t column = 0; column < count; column += kUnit) {
    const float* from = x + column;
    if (count - column < kUnit) from = (std::copy_n(from, count - column, tail), tail);
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = _mm512_loadu_si512(from + 16);
    all = _mm512_or_si512(all, _mm512_or_si512(low, high));
    _mm512_store_si512(out + column, _mm512_permutex2var_epi16(low, halves, high));
  }
  return _mm512_test_epi32_mask(all, _mm512_set1_epi32(0xFFFF)) == 0;
}

void dense_bf16(const DenseProduct& product, int64_t begin, int64_t end) {
  if (product.weight.format == WeightFormat::bf16) {
    return dense_of<Bf16Kernel, UnitReader<Bf16Kernel, WeightFormat::bf16>>(product, begin, end);
  }
  dense_of<Bf16Kernel, UnitReader<Bf16Kernel, WeightFormat::mxfp4>>(product, begin, end);
}

}  // namespace weft::ops::cpu
HWY_POP_ATTRIBUTES

#else

namespace weft::ops::cpu {
bool pack_bf16(const float*, int64_t, uint16_t*) { return false; }
void dense_bf16(const DenseProduct&, int64_t, int64_t) {}
}  // namespace weft::ops::cpu

#endif
