#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/dense.h"
#include "ops/split.h"

namespace weft::ops::cpu {

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32) {
  const int64_t rows = x.shape[0];
  const bool rounds = context.rounds() && !keep_f32;
  thread_local std::vector<const float*> in_rows;
  thread_local std::vector<float*> out_rows;
  in_rows.resize(static_cast<size_t>(rows));
  out_rows.resize(static_cast<size_t>(rows));
  for (int64_t t = 0; t < rows; ++t) {
    in_rows[static_cast<size_t>(t)] = x.as<float>().data() + t * weight.in;
    out_rows[static_cast<size_t>(t)] = y.as<float>().data() + t * weight.out;
  }
  const float* const* from = in_rows.data();
  float* const* to = out_rows.data();
  const int64_t grain = dense_grain(context, weight.out, rows * weight.in);
  context.pool->parallel_for(weight.out, grain,
                             [&](int64_t begin, int64_t end) { dense_rows(weight, begin, end, from, rows, to, rounds); });
}

}  // namespace weft::ops::cpu
