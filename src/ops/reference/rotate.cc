#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y) {
  const int64_t rows = x.shape[0];
  const int64_t half = rotary / 2;
  const float* xs = x.as<float>().data();
  const float* tables = table.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t count = rows * shape.heads;
  context.pool->parallel_for(count, task_grain(context, count, 2 * shape.size), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const float* cosine = tables + item / shape.heads * rotary;
      const float* sine = cosine + half;
      const float* from = xs + item * shape.size;
      float* to = ys + item * shape.size;
      for (int64_t i = 0; i < half; ++i) {
        const float a = from[i];
        const float b = from[i + half];
        to[i] = round_if(rounds, a * cosine[i] - b * sine[i]);
        to[i + half] = round_if(rounds, b * cosine[i] + a * sine[i]);
      }
      for (int64_t i = rotary; i < shape.size; ++i) to[i] = from[i];
    }
  });
}

}  // namespace weft::ops::reference
