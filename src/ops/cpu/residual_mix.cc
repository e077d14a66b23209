#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/residual_mix.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

// <v, w> / rms(v), reading v once.
float logit(const float* v, const float* w, int64_t size, float eps) {
  PartialSums squares;
  PartialSums product;
  int64_t i = 0;
  for (; i + PartialSums::kWidth <= size; i += PartialSums::kWidth) {
    squares.add(v + i, v + i);
    product.add(v + i, w + i);
  }
  if (i < size) {
    const Tail last(v + i, size - i);
    squares.add(last.values, last.values);
    product.add(last.values, Tail(w + i, size - i).values);
  }
  return product.total() / std::sqrt(squares.total() / static_cast<float>(size) + eps);
}

// out = sum_i p[i] source[i], i ascending by fused multiply-add.
void mix(std::span<const float* const> sources, const float* p, int64_t size, bool rounds, float* out) {
  for_elements(size, [&](auto d, int64_t c) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < sources.size(); ++i) sum = hn::MulAdd(hn::Set(d, p[i]), hn::LoadU(d, sources[i] + c), sum);
    hn::StoreU(round_if_of(d, rounds, sum), d, out + c);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(logit);
HWY_EXPORT(mix);

void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities) {
  const int64_t rows = out.shape[0];
  const int64_t size = out.shape[1];
  const size_t count = sources.size();
  if (count == 1) {
    std::ranges::copy(sources[0].as<float>(), out.as<float>().begin());
    std::ranges::fill(probabilities, 1.0F);
    return;
  }
  const float* ws = w.as<float>().data();
  float* to = out.as<float>().data();
  const int64_t cost = 2 * size * static_cast<int64_t>(count);
  context.pool->parallel_for(rows, task_grain(context, rows, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> p;
    thread_local std::vector<const float*> from;
    p.resize(count);
    from.resize(count);
    for (int64_t t = begin; t < end; ++t) {
      for (size_t i = 0; i < count; ++i) {
        from[i] = sources[i].as<float>().data() + t * size;
        p[i] = HWY_DYNAMIC_DISPATCH(logit)(from[i], ws, size, eps);
      }
      const float sum = exponentiate(p, 1.0F).sum;
      for (float& value : p) value /= sum;
      // The sources of the row are still in the cache.
      HWY_DYNAMIC_DISPATCH(mix)(from, p.data(), size, context.rounds(), to + t * size);
      if (!probabilities.empty()) std::ranges::copy(p, probabilities.begin() + t * static_cast<int64_t>(count));
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
