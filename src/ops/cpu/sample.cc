#include "ops/cpu/sample.h"

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sample.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

// Highway's Exp of float64 is within one ulp for arguments up to 0. Logits are finite, and those above `max` belong to ids that
// are not allowed, so that their weight does not matter.
template <class D>
HWY_INLINE void weigh_vector(D d, const float* logits, double max, double temperature, double* weights) {
  const auto wide = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), logits));
  const auto scaled = hn::Div(hn::Sub(wide, hn::Set(d, max)), hn::Set(d, temperature));
  hn::StoreU(hn::Exp(d, scaled), d, weights);
}

void weigh_all(std::span<const float> logits, double max, double temperature, std::span<double> weights) {
  const hn::CappedTag<double, 8> d;
  const auto lanes = hn::MaxLanes(d);
  size_t i = 0;
  for (; i + lanes <= logits.size(); i += lanes) weigh_vector(d, &logits[i], max, temperature, &weights[i]);
  for (; i < logits.size(); ++i) weigh_vector(hn::CappedTag<double, 1>(), &logits[i], max, temperature, &weights[i]);
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(weigh_all);

void weigh(std::span<const float> logits, double max, double temperature, std::span<double> weights) {
  HWY_DYNAMIC_DISPATCH(weigh_all)(logits, max, temperature, weights);
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
