#include <algorithm>
#include <vector>

#include "ops/math.h"
#include "ops/reference/reference.h"

namespace weft::ops::reference {
namespace {

TensorView row_of(const float* data, int64_t size) { return {DType::f32, {1, size}, reinterpret_cast<const std::byte*>(data)}; }
MutableTensorView row_of(std::vector<float>& data) {
  return {DType::f32, {1, static_cast<int64_t>(data.size())}, reinterpret_cast<std::byte*>(data.data())};
}

}  // namespace

void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         std::span<const ExpertView> experts, MutableTensorView out) {
  const int64_t size = z.shape[1];
  const int64_t chosen = ids.shape[1];
  std::vector<float> gate;
  std::vector<float> up;
  std::vector<float> y(static_cast<size_t>(size));
  for (int64_t t = 0; t < z.shape[0]; ++t) {
    const TensorView row = row_of(z.as<float>().data() + t * size, size);
    float* sum = out.as<float>().data() + t * size;
    std::fill_n(sum, size, 0.0F);
    for (int64_t i = t * chosen; i < (t + 1) * chosen; ++i) {
      const ExpertView& expert = experts[static_cast<size_t>(ids.as<int32_t>()[static_cast<size_t>(i)])];
      gate.resize(static_cast<size_t>(expert.w1.out));
      up.resize(static_cast<size_t>(expert.w3.out));
      reference::linear(context, row, expert.w1, row_of(gate), false);
      reference::linear(context, row, expert.w3, row_of(up), false);
      for (size_t m = 0; m < gate.size(); ++m) gate[m] = round_if(context.rounds(), activate(activation, gate[m], up[m]));
      reference::linear(context, row_of(gate), expert.w2, row_of(y), false);
      const float weight = weights.as<float>()[static_cast<size_t>(i)];
      for (int64_t c = 0; c < size; ++c) sum[c] += weight * y[static_cast<size_t>(c)];
    }
    for (int64_t c = 0; c < size; ++c) sum[c] = round_if(context.rounds(), sum[c]);
  }
}

}  // namespace weft::ops::reference
