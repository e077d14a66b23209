#include <algorithm>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/transposed.h"
#include "ops/mla_weights.h"
#include "ops/split.h"
#include "ops/weight_decode.h"

namespace weft::ops::cpu {
namespace {

// The same matrix in a form that transposed products take.
WeightView widened(const WeightView& weight) {
  if (weight.format == WeightFormat::f32 || weight.format == WeightFormat::bf16) return weight;
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(weight.out * weight.in));
  if (weight.format == WeightFormat::mxfp4) {
    for (int64_t i = 0; i < weight.out; ++i) decode_row(weight, i, values.data() + i * weight.in);
  } else {
    widen_rows(weight, values.data());
  }
  return {WeightFormat::f32, weight.out, weight.in, reinterpret_cast<const std::byte*>(values.data()), nullptr};
}

// Keys that stand alone, transposed: plain products.
void absorb_alone(Context& context, const MlaShape& shape, TensorView q, const WeightView& keys, MutableTensorView ql) {
  const int64_t rows = q.shape[0];
  const float* qs = q.as<float>().data();
  float* out = ql.as<float>().data();
  const int64_t cost = rows * shape.nope * shape.latent / 16;
  context.pool->parallel_for(shape.heads, task_grain(context, shape.heads, cost), [&](int64_t begin, int64_t end) {
    thread_local PackedRows packed;
    thread_local std::vector<float*> to;
    packed.resize(RowForm::f32, rows, shape.nope);
    to.resize(static_cast<size_t>(rows));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t t = 0; t < rows; ++t) {
        packed.pack(t, 0, shape.nope, qs + (t * shape.heads + head) * (shape.nope + shape.rope));
        to[static_cast<size_t>(t)] = out + (t * shape.heads + head) * shape.latent;
      }
      dense_rows({.weight = keys.rows(head * shape.latent, (head + 1) * shape.latent),
                  .form = packed.form(),
                  .x = packed.rows(),
                  .rows = rows,
                  .y = to.data()},
                 0, shape.latent);
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
  const int64_t cost = (rows / 16 + 1) * shape.nope * shape.latent;
  context.pool->parallel_for(shape.heads, task_grain(context, shape.heads, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<const float*> factors;
    thread_local std::vector<float*> sums;
    factors.resize(static_cast<size_t>(rows));
    sums.resize(static_cast<size_t>(rows));
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t t = 0; t < rows; ++t) {
        float* sum = out + (t * shape.heads + head) * shape.latent;
        std::fill_n(sum, shape.latent, 0.0F);
        factors[static_cast<size_t>(t)] = qs + (t * shape.heads + head) * q_size;
        sums[static_cast<size_t>(t)] = sum;
      }
      const int64_t first = head * (shape.nope + shape.value);
      add_transposed_rows(widened(kv_b.rows(first, first + shape.nope)), shape.latent, factors.data(), rows, sums.data());
    }
  });
}

}  // namespace weft::ops::cpu
