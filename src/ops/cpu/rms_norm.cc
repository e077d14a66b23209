#include <cmath>

#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rms_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void normalise_row(const float* x, const float* weight, int64_t size, float eps, bool rounds, bool rounds_twice, float* y) {
  const float factor = 1.0F / std::sqrt(dot(x, x, size) / static_cast<float>(size) + eps);
  for_elements(size, [&](auto d, int64_t i) HWY_ATTR {
    const auto normalised = round_if_of(d, rounds_twice, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)));
    hn::StoreU(round_if_of(d, rounds, hn::Mul(normalised, hn::LoadU(d, weight + i))), d, y + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(normalise_row);

void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y, NormRounding rounding) {
  const int64_t rows = x.shape[0];
  const int64_t size = x.shape[1];
  const float* xs = x.as<float>().data();
  const float* w = weight.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds_twice = context.rounds() && rounding == NormRounding::twice;
  context.pool->parallel_for(rows, task_grain(context, rows, size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      HWY_DYNAMIC_DISPATCH(normalise_row)(xs + t * size, w, size, eps, context.rounds(), rounds_twice, ys + t * size);
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
