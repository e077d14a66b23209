#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kda_gate.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void gate_head(const float* z, const float* bias, int64_t size, float a_log, std::optional<float> lower_bound, float* g) {
  const float a = hn::GetLane(exp_of(OneLane(), hn::Set(OneLane(), a_log)));
  for_elements(size, [&](auto d, int64_t i) HWY_ATTR {
    const auto value = hn::Add(hn::LoadU(d, z + i), hn::LoadU(d, bias + i));
    const auto decay = lower_bound ? hn::Mul(hn::Set(d, *lower_bound), sigmoid_of(d, hn::Mul(hn::Set(d, a), value)))
                                   : hn::Mul(hn::Set(d, -a), softplus_of(d, value));
    hn::StoreU(decay, d, g + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(gate_head);

void kda_gate(Context& context, TensorView z, TensorView a_log, TensorView dt_bias, std::optional<float> lower_bound,
              MutableTensorView g) {
  const int64_t heads = a_log.shape[0];
  const int64_t size = dt_bias.shape[0] / heads;
  const float* zs = z.as<float>().data();
  const float* as = a_log.as<float>().data();
  const float* bias = dt_bias.as<float>().data();
  float* gs = g.as<float>().data();
  const int64_t count = z.shape[0] * heads;
  context.pool->parallel_for(count, task_grain(context, count, 3 * size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item % heads;
      HWY_DYNAMIC_DISPATCH(gate_head)(zs + item * size, bias + head * size, size, as[head], lower_bound, gs + item * size);
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
