#include <vector>

#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/weight_decode.h"

namespace weft::ops::reference {

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32) {
  const int64_t rows = x.shape[0];
  const int64_t in = weight.in;
  const int64_t out = weight.out;
  const float* xs = x.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds() && !keep_f32;
  context.pool->parallel_for(out, task_grain(context, out, rows * in), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> w;
    w.resize(static_cast<size_t>(in));
    for (int64_t o = begin; o < end; ++o) {
      decode_row(weight, o, w.data());
      for (int64_t t = 0; t < rows; ++t) {
        float sum = 0.0F;
        for (int64_t c = 0; c < in; ++c) sum += w[static_cast<size_t>(c)] * xs[t * in + c];
        ys[t * out + o] = round_if(rounds, sum);
      }
    }
  });
}

}  // namespace weft::ops::reference
