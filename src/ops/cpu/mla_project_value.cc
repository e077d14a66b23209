#include <algorithm>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/mla_weights.h"
#include "ops/split.h"

namespace weft::ops::cpu {

void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o) {
  const int64_t rows = lat.shape[0];
  const float* lats = lat.as<float>().data();
  float* os = o.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t cost = rows * shape.value * shape.latent / 16;
  context.pool->parallel_for(shape.heads, task_grain(context, shape.heads, cost), [&](int64_t begin, int64_t end) {
    thread_local PackedRows packed;  // float32: latents are not rounded
    thread_local std::vector<float*> to;
    packed.resize(RowForm::f32, rows, shape.latent);
    to.resize(static_cast<size_t>(rows));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t t = 0; t < rows; ++t) {
        packed.pack(t, 0, shape.latent, lats + (t * shape.heads + head) * shape.latent);
        to[static_cast<size_t>(t)] = os + (t * shape.heads + head) * shape.value;
      }
      const int64_t first = value_row(shape, kv_b, head);
      dense_rows({.weight = kv_b.rows(first, first + shape.value),
                  .form = packed.form(),
                  .x = packed.rows(),
                  .rows = rows,
                  .y = to.data(),
                  .rounds = rounds},
                 0, shape.value);
    }
  });
}

}  // namespace weft::ops::cpu
