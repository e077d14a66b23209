#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/add.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void add_elements(const float* a, const float* b, int64_t count, bool rounds, float* out) {
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(round_if_of(d, rounds, hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i))), d, out + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(add_elements);

void add(Context& context, TensorView a, TensorView b, MutableTensorView out) {
  const float* as = a.as<float>().data();
  const float* bs = b.as<float>().data();
  float* to = out.as<float>().data();
  const int64_t count = a.elements();
  context.pool->parallel_for(count, task_grain(context, count, 1), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_elements)(as + begin, bs + begin, end - begin, context.rounds(), to + begin);
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
