#include "ops/cpu/transposed.h"

#include <cstring>

#include "base/error.h"
#include "ops/cpu/targets.h"
#include "tensor/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/transposed.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
// Sums in registers: 24 of 32 or 12 of 16. One row takes wide blocks, so that long pieces of the matrix are read at a time.
constexpr int kMaxRows = kLanes == 16 ? 6 : 3;
template <int kRows>
constexpr int kVectors = kRows > 1      ? 4
                         : kLanes == 16 ? 16
                                        : 8;

HWY_INLINE float widen(float value) { return value; }
HWY_INLINE float widen(uint16_t value) { return bf16_to_f32(value); }

// `lanes` elements from byte address p, which need not be aligned.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, float, const std::byte* p) {
  return hn::LoadU(d, reinterpret_cast<const float*>(p));
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, uint16_t, const std::byte* p) {
  const auto wide =
      hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(wide));
}

// kColumns vectors of columns for kRows rows. T: float or uint16_t (bf16).
template <class T, int kRows, int kColumns>
HWY_INLINE void block(const WeightView& matrix, const float* const* a, float* const* y, int64_t column) {
  using V = hn::Vec<D>;
  const D d;
  const float* factors[kRows];
  for (int r = 0; r < kRows; ++r) factors[r] = a[r];
  V sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumns; ++v) sum[r][v] = hn::Zero(d);
  }
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const std::byte* row = matrix.data + column * kSize;
  for (int64_t i = 0; i < matrix.out; ++i, row += matrix.in * kSize) {
    V m[kColumns];
    for (int v = 0; v < kColumns; ++v) m[v] = load(d, T(), row + v * kLanes * kSize);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, factors[r][i]);
      for (int v = 0; v < kColumns; ++v) sum[r][v] = hn::MulAdd(factor, m[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumns; ++v) {
      float* to = y[r] + column + v * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum[r][v]), d, to);
    }
  }
}

template <class T, int kRows>
HWY_NOINLINE void rows_of(const WeightView& matrix, int64_t size, const float* const* a, float* const* y) {
  int64_t column = 0;
  constexpr int64_t kWidth = kVectors<kRows> * kLanes;
  for (; column + kWidth <= size; column += kWidth) block<T, kRows, kVectors<kRows>>(matrix, a, y, column);
  for (; column + kLanes <= size; column += kLanes) block<T, kRows, 1>(matrix, a, y, column);
  const hn::CappedTag<float, 1> d1;  // the same fused operation for the last columns
  for (; column < size; ++column) {
    for (int r = 0; r < kRows; ++r) {
      auto sum = hn::Zero(d1);
      for (int64_t i = 0; i < matrix.out; ++i) {
        T value = 0;
        std::memcpy(&value, matrix.data + (i * matrix.in + column) * static_cast<int64_t>(sizeof(T)), sizeof(T));
        sum = hn::MulAdd(hn::Set(d1, a[r][i]), hn::Set(d1, widen(value)), sum);
      }
      y[r][column] += hn::GetLane(sum);
    }
  }
}

// The last rows, fewer than kMaxRows.
template <class T, int kRows>
void rest(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y) {
  if (rows == kRows) return rows_of<T, kRows>(matrix, size, a, y);
  if constexpr (kRows > 1) rest<T, kRows - 1>(matrix, size, a, rows, y);
}

template <class T>
void all_rows(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y) {
  int64_t r = 0;
  for (; r + kMaxRows <= rows; r += kMaxRows) rows_of<T, kMaxRows>(matrix, size, a + r, y + r);
  if (r < rows) rest<T, kMaxRows - 1>(matrix, size, a + r, rows - r, y + r);
}

void add_transposed_f32(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y) {
  all_rows<float>(matrix, size, a, rows, y);
}
void add_transposed_bf16(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y) {
  all_rows<uint16_t>(matrix, size, a, rows, y);
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(add_transposed_f32);
HWY_EXPORT(add_transposed_bf16);

void add_transposed_rows(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y) {
  switch (matrix.format) {
    case WeightFormat::f32: return HWY_DYNAMIC_DISPATCH(add_transposed_f32)(matrix, size, a, rows, y);
    case WeightFormat::bf16: return HWY_DYNAMIC_DISPATCH(add_transposed_bf16)(matrix, size, a, rows, y);
    case WeightFormat::mxfp4:
    case WeightFormat::fp8_block:
    case WeightFormat::affine:
      fail(ErrorKind::internal, "transposed product", "wanted an f32 or bf16 matrix, found a packed one");
  }
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
