#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

void first_not_finite(Context& context, TensorView x, int64_t place, std::span<uint64_t> first) {
  const float* xs = floats(x);
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  auto* least = reinterpret_cast<unsigned long long*>(first.data());
  const auto base = static_cast<unsigned long long>(place) << kPlaceShift;
  for_each_element(
      context, x.elements(),
      [=] __device__(int64_t i) {
        const float value = xs[i];
        if (isfinite(value)) return;
        const uint64_t kind = isnan(value) ? kIsNan : value > 0.0F ? kIsInfinity : kIsMinusInfinity;
        const unsigned long long code = base | static_cast<unsigned long long>(i) << kElementShift | kind;
        // Whole tensors of NaN would otherwise queue up at one address.
        if (code < *static_cast<volatile unsigned long long*>(least)) atomicMin(least, code);
      },
      "first_not_finite");
}

}  // namespace weft::ops::cuda
