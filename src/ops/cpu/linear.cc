#include <algorithm>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

constexpr int64_t kPackedRows = 512;  // rows of one pass over the weight: bounds the workspace at the default prefill chunk

}  // namespace

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32) {
  const int64_t in = weight.in;
  thread_local PackedRows packed;
  thread_local std::vector<float*> outputs;
  for (int64_t first = 0; first < x.shape[0]; first += kPackedRows) {
    const int64_t rows = std::min(kPackedRows, x.shape[0] - first);
    const float* from = x.as<float>().data() + first * in;
    float* to = y.as<float>().data() + first * weight.out;
    packed.resize(row_form(weight.format, context.rounds()), rows, in);
    packed.pack_all(context, from);
    outputs.resize(static_cast<size_t>(rows));
    for (int64_t t = 0; t < rows; ++t) outputs[static_cast<size_t>(t)] = to + t * weight.out;
    const DenseProduct product{.weight = weight,
                               .form = packed.form(),
                               .x = packed.rows(),
                               .rows = rows,
                               .y = outputs.data(),
                               .rounds = context.rounds() && !keep_f32};
    context.pool->parallel_for(weight.out, dense_tasks(context, weight.out, rows * in),
                               [&](int64_t begin, int64_t end) { dense_rows(product, begin, end); });
  }
}

}  // namespace weft::ops::cpu
