#include <vector>

#include "ops/math.h"
#include "ops/mla_weights.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"
#include "ops/weight_decode.h"

namespace weft::ops::reference {

void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o) {
  const int64_t rows = lat.shape[0];
  const float* lats = lat.as<float>().data();
  float* os = o.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t outputs = shape.heads * shape.value;
  context.pool->parallel_for(outputs, task_grain(context, outputs, (rows + 1) * shape.latent), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> w;
    w.resize(static_cast<size_t>(shape.latent));
    for (int64_t output = begin; output < end; ++output) {
      const int64_t head = output / shape.value;
      decode_row(kv_b, value_row(shape, kv_b, head) + output % shape.value, w.data());
      for (int64_t t = 0; t < rows; ++t) {
        const float sum = lane_dot(w.data(), lats + (t * shape.heads + head) * shape.latent, shape.latent);
        os[t * outputs + output] = round_if(rounds, sum);
      }
    }
  });
}

}  // namespace weft::ops::reference
