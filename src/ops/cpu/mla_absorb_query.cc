#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/split.h"
#include "ops/weight_decode.h"

namespace weft::ops::cpu {

void mla_absorb_query(Context& context, const MlaShape& shape, TensorView q, const WeightView& kv_b, MutableTensorView ql) {
  const int64_t rows = q.shape[0];
  const int64_t q_size = shape.nope + shape.rope;
  const float* qs = q.as<float>().data();
  float* out = ql.as<float>().data();
  const int64_t cost = (rows / 16 + 1) * shape.nope * shape.latent;
  context.pool->parallel_for(shape.heads, task_grain(context, shape.heads, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> matrix;  // WK of one head, [dn, rc]
    thread_local std::vector<const float*> factors;
    thread_local std::vector<float*> sums;
    matrix.resize(static_cast<size_t>(shape.nope * shape.latent));
    factors.resize(static_cast<size_t>(rows));
    sums.resize(static_cast<size_t>(rows));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t i = 0; i < shape.nope; ++i) {
        decode_row(kv_b, head * (shape.nope + shape.value) + i, matrix.data() + i * shape.latent);
      }
      for (int64_t t = 0; t < rows; ++t) {
        factors[static_cast<size_t>(t)] = qs + (t * shape.heads + head) * q_size;
        sums[static_cast<size_t>(t)] = out + (t * shape.heads + head) * shape.latent;
      }
      transposed_rows(matrix.data(), shape.latent, shape.nope, shape.latent, factors.data(), rows, sums.data());
    }
  });
}

}  // namespace weft::ops::cpu
