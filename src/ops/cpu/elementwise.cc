#include "ops/cpu/elementwise.h"

#include <algorithm>

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

void exponentials_of(const float* x, int64_t count, float* y) {
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(exp_of(d, hn::LoadU(d, x + i)), d, y + i); });
}

void sigmoids_of(const float* x, int64_t count, float* y) {
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(sigmoid_of(d, hn::LoadU(d, x + i)), d, y + i); });
}

void activate_all(const Activation& activation, const float* gate, const float* up, int64_t count, bool rounds, float* y) {
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto value = activate_of(d, activation, hn::LoadU(d, gate + i), hn::LoadU(d, up + i));
    hn::StoreU(round_if_of(d, rounds, value), d, y + i);
  });
}

RunningSoftmax exponentiate_scaled(float* scores, int64_t count, float scale) {
  RunningSoftmax block;
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, scores + i), hn::Set(d, scale));
    hn::StoreU(scaled, d, scores + i);
    block.max = std::max(block.max, hn::GetLane(hn::MaxOfLanes(d, scaled)));
  });
  for_elements(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(exp_of(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, block.max))), d, scores + i);
  });
  block.sum = sum_of(scores, count);
  return block;
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(exponentials_of);
HWY_EXPORT(sigmoids_of);
HWY_EXPORT(activate_all);
HWY_EXPORT(exponentiate_scaled);

void exponentials(const float* x, int64_t count, float* y) { HWY_DYNAMIC_DISPATCH(exponentials_of)(x, count, y); }

void sigmoids(const float* x, int64_t count, float* y) { HWY_DYNAMIC_DISPATCH(sigmoids_of)(x, count, y); }

void activate(const Activation& activation, const float* gate, const float* up, int64_t count, bool rounds, float* y) {
  HWY_DYNAMIC_DISPATCH(activate_all)(activation, gate, up, count, rounds, y);
}

RunningSoftmax exponentiate(std::span<float> scores, float scale) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_scaled)(scores.data(), static_cast<int64_t>(scores.size()), scale);
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
