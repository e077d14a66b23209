// Functions and sums of float32 vectors for the kernels of one dispatch target. Included once for each target, after
// foreach_target.h.
//
// A function does the same arithmetic in every lane and for every vector length, so that an element's result depends neither on
// its place nor on how many elements there are (for_elements works on a tail one element at a time with the same functions).
#if defined(WEFT_OPS_CPU_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_VECTOR_MATH_INL_H
#undef WEFT_OPS_CPU_VECTOR_MATH_INL_H
#else
#define WEFT_OPS_CPU_VECTOR_MATH_INL_H
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "ops/ops.h"
#include "ops/sum.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::CappedTag<float, 16>;
using OneLane = hn::CappedTag<float, 1>;

// body(d, i) works on the elements [i, i + lanes of d) for all of [0, count).
template <class Body>
HWY_INLINE void for_elements(int64_t count, const Body& body) {
  const Lanes d;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Lanes()));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(d, i);
  for (; i < count; ++i) body(OneLane(), i);
}

// Highway's Exp is within one ulp for arguments up to 104, beyond which it promises nothing; it gives 0 for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V bounded = hn::IfThenElse(hn::Gt(x, hn::Set(d, 104.0F)), infinity, hn::Exp(d, x));
  return hn::IfThenElse(hn::IsNaN(x), x, bounded);
}

// As ops/math.h: the exponential is at most 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid_of(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V e = exp_of(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e), hn::Add(one, e));
}

// As ops/math.h.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus_of(D d, V x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0F)), x, hn::Log1p(d, exp_of(d, x)));
}

// bound * tanh(x / bound).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softly_bounded(D d, V x, float bound) {
  const V limit = hn::Set(d, bound);
  return hn::Mul(limit, hn::Tanh(d, hn::Div(x, limit)));
}

// One vector of SiTU or SwiGLU, not rounded (ops/math.h).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V activate_of(D d, const Activation& activation, V gate, V up) {
  if (activation.kind == Activation::Kind::silu) return hn::Mul(hn::Mul(gate, sigmoid_of(d, gate)), up);
  const V bounded_gate = hn::Mul(softly_bounded(d, gate, activation.beta), sigmoid_of(d, gate));
  return hn::Mul(bounded_gate, activation.linear_beta ? softly_bounded(d, up, *activation.linear_beta) : up);
}

// round_if of ops/math.h.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V round_if_of(D d, bool rounds, V x) {
  if (!rounds) return x;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));  // NaN stays NaN
  const auto wide = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, nearest);
  return hn::BitCast(d, hn::And(wide, hn::Set(du, 0xffff0000)));
}

// A sum in 32 parts: element i belongs to part i mod 32, parts are filled in ascending order by fused multiply-add and
// added in a fixed order at the end, so that the order depends on the number of elements alone.
class PartialSums {
 public:
  static constexpr int64_t kWidth = 32;

  HWY_INLINE PartialSums() {
    for (auto& sum : sums_) sum = hn::Zero(Lanes());
  }
  // Adds a[i] b[i] for i in [0, 32).
  HWY_INLINE void add(const float* a, const float* b) {
    const Lanes d;
    for (int64_t v = 0; v < kVecs; ++v) {
      sums_[v] = hn::MulAdd(hn::LoadU(d, a + v * kLanes), hn::LoadU(d, b + v * kLanes), sums_[v]);
    }
  }
  // Adds a[i] for i in [0, 32).
  HWY_INLINE void add(const float* a) {
    const Lanes d;
    for (int64_t v = 0; v < kVecs; ++v) sums_[v] = hn::Add(hn::LoadU(d, a + v * kLanes), sums_[v]);
  }
  [[nodiscard]] HWY_INLINE float total() const {
    alignas(64) float parts[kWidth];
    for (int64_t v = 0; v < kVecs; ++v) hn::Store(sums_[v], Lanes(), parts + v * kLanes);
    for (int64_t i = 0; i < kWidth / 2; ++i) parts[i] += parts[i + kWidth / 2];
    return fold16(parts);
  }

 private:
  static constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Lanes()));
  static constexpr int64_t kVecs = kWidth / kLanes;
  hn::Vec<Lanes> sums_[kVecs];
};

// The last elements of a vector, zeros up to 32.
struct Tail {
  Tail(const float* from, int64_t count) {
    for (int64_t i = 0; i < PartialSums::kWidth; ++i) values[i] = i < count ? from[i] : 0.0F;
  }
  alignas(64) float values[PartialSums::kWidth];
};

HWY_INLINE float sum_of(const float* a, int64_t count) {
  PartialSums sum;
  int64_t i = 0;
  for (; i + PartialSums::kWidth <= count; i += PartialSums::kWidth) sum.add(a + i);
  if (i < count) sum.add(Tail(a + i, count - i).values);
  return sum.total();
}

HWY_INLINE float dot(const float* a, const float* b, int64_t count) {
  PartialSums sum;
  int64_t i = 0;
  for (; i + PartialSums::kWidth <= count; i += PartialSums::kWidth) sum.add(a + i, b + i);
  if (i < count) sum.add(Tail(a + i, count - i).values, Tail(b + i, count - i).values);
  return sum.total();
}

}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // WEFT_OPS_CPU_VECTOR_MATH_INL_H
