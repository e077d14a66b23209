#include <cmath>

#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gated_rms_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void normalise_head(const float* o, const float* weight, const float* gate, int64_t size, float eps, bool by_silu, bool rounds,
                    float* y) {
  const float factor = 1.0F / std::sqrt(dot(o, o, size) / static_cast<float>(size) + eps);
  for_elements(size, [&](auto d, int64_t i) HWY_ATTR {
    const auto normalised = hn::Mul(hn::Mul(hn::LoadU(d, o + i), hn::Set(d, factor)), hn::LoadU(d, weight + i));
    const auto z = hn::LoadU(d, gate + i);
    const auto gated = by_silu ? hn::Mul(z, sigmoid_of(d, z)) : sigmoid_of(d, z);
    hn::StoreU(round_if_of(d, rounds, hn::Mul(normalised, gated)), d, y + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(normalise_head);

void gated_rms_norm(Context& context, TensorView o, TensorView weight, float eps, TensorView gate, MutableTensorView y,
                    NormGate kind) {
  const int64_t size = weight.shape[0];
  const int64_t count = o.elements() / size;  // rows times heads
  const float* os = o.as<float>().data();
  const float* w = weight.as<float>().data();
  const float* gates = gate.as<float>().data();
  float* ys = y.as<float>().data();
  const bool by_silu = kind == NormGate::silu;
  context.pool->parallel_for(count, task_grain(context, count, 4 * size), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * size; at < end * size; at += size) {
      HWY_DYNAMIC_DISPATCH(normalise_head)(os + at, w, gates + at, size, eps, by_silu, context.rounds(), ys + at);
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
