#include <algorithm>

#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/weight.cuh"

namespace weft::ops::cuda {
namespace {

// Below this many outputs, warps of one row each would not fill the chip: a block shares one output.
constexpr int64_t kManyOutputs = 4096;
constexpr int kRowTile = 4;  // rows of x that share each loaded weight

// Grid (groups of outputs, tiles of rows). kSplit warps share the columns of kOutputs outputs; a row's sums do not depend on
// the number of rows.
template <WeightFormat kFormat, bool kVector, int kOutputs, int kRows, int kSplit>
__global__ void __launch_bounds__(kThreads)
    linear_kernel(const float* x, int64_t rows, WeightView weight, float* y, bool rounds) {
  constexpr int kGroups = kWarps / kSplit;  // of outputs in a block
  __shared__ float parts[kWarps][kOutputs][kRows];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kGroups + warp / kSplit) * kOutputs;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kRows;
  float sum[kOutputs][kRows] = {};
  if (first < weight.out) {
    lane_dots<kFormat, kVector, kOutputs, kRows>(weight, first, weight.out, x + row * weight.in, weight.in, rows - row,
                                                 warp % kSplit, kSplit, sum);
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = warp_sum(sum[o][r]);
      if (threadIdx.x % kWarp == 0) parts[warp][o][r] = total;
    }
  }
  __syncthreads();
  for (int item = static_cast<int>(threadIdx.x); item < kGroups * kOutputs * kRows; item += kThreads) {
    const int r = item % kRows;
    const int o = item / kRows % kOutputs;
    const int group = item / (kRows * kOutputs);
    const int64_t output = (static_cast<int64_t>(blockIdx.x) * kGroups + group) * kOutputs + o;
    if (output >= weight.out || row + r >= rows) continue;
    float total = 0.0F;
    for (int part = 0; part < kSplit; ++part) total += parts[group * kSplit + part][o][r];
    y[(row + r) * weight.out + output] = round_if(rounds, total);
  }
}

template <WeightFormat kFormat, bool kVector, int kOutputs, int kSplit>
void launch(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool rounds) {
  const int64_t rows = x.shape[0];
  const unsigned groups = blocks_for(weight.out, kOutputs * (kWarps / kSplit));
  if (rows == 1) {
    linear_kernel<kFormat, kVector, kOutputs, 1, kSplit>
        <<<groups, kThreads, 0, stream_of(context)>>>(floats(x), rows, weight, floats(y), rounds);
  } else {
    linear_kernel<kFormat, kVector, kOutputs, kRowTile, kSplit>
        <<<dim3(groups, blocks_for(rows, kRowTile)), kThreads, 0, stream_of(context)>>>(floats(x), rows, weight, floats(y),
                                                                                        rounds);
  }
}

}  // namespace

void linear(Context& context, TensorView x, const WeightView& weight, MutableTensorView y, bool keep_f32) {
  if (x.shape[0] == 0 || weight.out == 0) return;
  const bool rounds = context.rounds() && !keep_f32;
  if (gemm_fits(context, x, weight)) {
    gemm(context, x, weight, y);
    float* ys = floats(y);
    if (rounds) for_each_element(context, y.elements(), [=] __device__(int64_t i) { ys[i] = round_bf16(ys[i]); }, "linear");
    return;
  }
  with_format(weight.format, vector_loads(weight, x.data), [&](auto format, auto vector) {
    if (weight.out >= kManyOutputs) {
      launch<format(), vector(), 4, 1>(context, x, weight, y, rounds);
    } else {
      launch<format(), vector(), 1, kWarps>(context, x, weight, y, rounds);
    }
  });
  launched("linear");
}

}  // namespace weft::ops::cuda
