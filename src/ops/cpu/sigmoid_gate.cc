#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sigmoid_gate.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void gate_elements(const float* x, const float* gate, int64_t count, bool rounds, float* y) {
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto factor = round_if_of(d, rounds, sigmoid_of(d, hn::LoadU(d, gate + i)));
    hn::StoreU(round_if_of(d, rounds, hn::Mul(hn::LoadU(d, x + i), factor)), d, y + i);
  });
}

void gate_row(const float* x, float gate, int64_t count, bool rounds, float* y) {
  const OneLane d1;
  const float factor = hn::GetLane(round_if_of(d1, rounds, sigmoid_of(d1, hn::Set(d1, gate))));
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(round_if_of(d, rounds, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor))), d, y + i);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(gate_elements);
HWY_EXPORT(gate_row);

void sigmoid_gate(Context& context, TensorView x, TensorView gate, MutableTensorView y) {
  const float* xs = x.as<float>().data();
  const float* gates = gate.as<float>().data();
  float* ys = y.as<float>().data();
  const int64_t size = x.shape[1];
  if (gate.shape[1] == 1) {
    context.pool->parallel_for(x.shape[0], task_grain(context, x.shape[0], size), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        HWY_DYNAMIC_DISPATCH(gate_row)(xs + t * size, gates[t], size, context.rounds(), ys + t * size);
      }
    });
    return;
  }
  const int64_t count = x.elements();
  context.pool->parallel_for(count, task_grain(context, count, 3), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gate_elements)(xs + begin, gates + begin, end - begin, context.rounds(), ys + begin);
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
