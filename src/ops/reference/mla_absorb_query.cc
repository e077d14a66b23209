#include <algorithm>
#include <vector>

#include "ops/mla_weights.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"
#include "ops/weight_decode.h"

namespace weft::ops::reference {

namespace {

void absorb_alone(Context& context, const MlaShape& shape, TensorView q, const WeightView& keys, MutableTensorView ql) {
  const int64_t rows = q.shape[0];
  const int64_t outputs = shape.heads * shape.latent;
  const float* qs = q.as<float>().data();
  float* out = ql.as<float>().data();
  context.pool->parallel_for(outputs, task_grain(context, outputs, (rows + 1) * shape.nope), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> w;
    w.resize(static_cast<size_t>(shape.nope));
    for (int64_t output = begin; output < end; ++output) {
      decode_row(keys, output, w.data());
      const int64_t head = output / shape.latent;
      for (int64_t t = 0; t < rows; ++t) {
        out[t * outputs + output] = lane_dot(w.data(), qs + (t * shape.heads + head) * (shape.nope + shape.rope), shape.nope);
      }
    }
  });
}

}  // namespace

void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql) {
  if (alone_keys(shape, kv_b)) return absorb_alone(context, shape, q, kv_b, ql);
  const int64_t rows = q.shape[0];
  const int64_t q_size = shape.nope + shape.rope;
  const float* qs = q.as<float>().data();
  float* out = ql.as<float>().data();
  const int64_t cost = (rows + 1) * shape.nope * shape.latent;
  context.pool->parallel_for(shape.heads, task_grain(context, shape.heads, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> w;
    w.resize(static_cast<size_t>(shape.latent));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t t = 0; t < rows; ++t) std::fill_n(out + (t * shape.heads + head) * shape.latent, shape.latent, 0.0F);
      for (int64_t i = 0; i < shape.nope; ++i) {
        decode_row(kv_b, head * (shape.nope + shape.value) + i, w.data());
        for (int64_t t = 0; t < rows; ++t) {
          const float factor = qs[(t * shape.heads + head) * q_size + i];
          float* sum = out + (t * shape.heads + head) * shape.latent;
          for (int64_t c = 0; c < shape.latent; ++c) sum[c] += factor * w[static_cast<size_t>(c)];
        }
      }
    }
  });
}

}  // namespace weft::ops::reference
