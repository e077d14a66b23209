#include <cmath>

#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {

void rms_norm(Context& context, TensorView x, TensorView weight, float eps, MutableTensorView y, NormRounding rounding) {
  const int64_t rows = x.shape[0];
  const int64_t size = x.shape[1];
  const float* xs = x.as<float>().data();
  const float* w = weight.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  const bool rounds_twice = rounds && rounding == NormRounding::twice;
  context.pool->parallel_for(rows, task_grain(context, rows, 4 * size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* in = xs + t * size;
      float* out = ys + t * size;
      const float factor = 1.0F / std::sqrt(lane_dot(in, in, size) / static_cast<float>(size) + eps);
      for (int64_t c = 0; c < size; ++c) out[c] = round_if(rounds, round_if(rounds_twice, in[c] * factor) * w[c]);
    }
  });
}

}  // namespace weft::ops::reference
