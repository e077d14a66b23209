#include <algorithm>

#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rotate.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

// `half` pairs of one head; y may be x.
void rotate_pairs(const float* x, const float* cosines, const float* sines, int64_t half, bool rounds, float* y) {
  for_elements(half, [&](auto d, int64_t i) HWY_ATTR {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + half + i);
    const auto cosine = hn::LoadU(d, cosines + i);
    const auto sine = hn::LoadU(d, sines + i);
    hn::StoreU(round_if_of(d, rounds, hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine))), d, y + i);
    hn::StoreU(round_if_of(d, rounds, hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine))), d, y + half + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(rotate_pairs);

void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y) {
  const int64_t half = rotary / 2;
  const float* xs = x.as<float>().data();
  const float* tables = table.as<float>().data();
  float* ys = y.as<float>().data();
  const int64_t count = x.shape[0] * shape.heads;
  context.pool->parallel_for(count, task_grain(context, count, shape.size / 2), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const float* cosines = tables + item / shape.heads * rotary;
      const float* from = xs + item * shape.size;
      float* to = ys + item * shape.size;
      HWY_DYNAMIC_DISPATCH(rotate_pairs)(from, cosines, cosines + half, half, context.rounds(), to);
      if (to != from) std::copy(from + rotary, from + shape.size, to + rotary);
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
