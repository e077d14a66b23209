#include <algorithm>

#include "ops/cuda/cuda.h"
#include "ops/cuda/tables.h"
#include "ops/cuda/weight.cuh"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

constexpr int kOutputs = 2;                       // of a warp, for each weight
constexpr int kBlockOutputs = kWarps * kOutputs;  // of a block

// A pair is one row at one of its experts; pair p belongs to row p / k. Expert pointers are read from the table on the device.

// Grid (groups of kBlockOutputs hidden values, pairs). hidden [pairs, M] = act(w1 z, w3 z).
template <WeightFormat kFormat, bool kVector>
__global__ void __launch_bounds__(kThreads)
    hidden_kernel(ActivationRule rule, const float* z, const int32_t* ids, int64_t chosen, const ExpertView* experts,
                  float* hidden, bool rounds) {
  const int64_t pair = blockIdx.y;
  const ExpertView expert = experts[ids[pair]];
  const int64_t middle = expert.w1.out;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockOutputs + threadIdx.x / kWarp * kOutputs;
  if (first >= middle) return;
  const float* row = z + pair / chosen * expert.w1.in;
  float gate[kOutputs][1] = {};
  float up[kOutputs][1] = {};
  lane_dots<kFormat, kVector, kOutputs, 1>(expert.w1, first, middle, row, 0, 1, 0, 1, gate);
  lane_dots<kFormat, kVector, kOutputs, 1>(expert.w3, first, middle, row, 0, 1, 0, 1, up);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float g = round_if(rounds, warp_sum(gate[o][0]));
    const float u = round_if(rounds, warp_sum(up[o][0]));
    if (threadIdx.x % kWarp == 0 && first + o < middle) {
      hidden[pair * middle + first + o] = round_if(rounds, activate(rule, g, u));
    }
  }
}

// Grid (groups of kBlockOutputs outputs, pairs). y [pairs, Z] = w2 hidden.
template <WeightFormat kFormat, bool kVector>
__global__ void __launch_bounds__(kThreads)
    down_kernel(const float* hidden, const int32_t* ids, const ExpertView* experts, float* y, bool rounds) {
  const int64_t pair = blockIdx.y;
  const WeightView weight = experts[ids[pair]].w2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockOutputs + threadIdx.x / kWarp * kOutputs;
  if (first >= weight.out) return;
  float sum[kOutputs][1] = {};
  lane_dots<kFormat, kVector, kOutputs, 1>(weight, first, weight.out, hidden + pair * weight.in, 0, 1, 0, 1, sum);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const float total = round_if(rounds, warp_sum(sum[o][0]));
    if (threadIdx.x % kWarp == 0 && first + o < weight.out) y[pair * weight.out + first + o] = total;
  }
}

// Grid (blocks of outputs, rows). out[t] = sum over the row's experts, ascending, of weight * y.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* y, const float* weights, int64_t chosen, int64_t size, float* out, bool rounds) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= size) return;
  const int64_t row = blockIdx.y;
  float sum = 0.0F;
  for (int64_t i = 0; i < chosen; ++i) sum += weights[row * chosen + i] * y[(row * chosen + i) * size + c];
  out[row * size + c] = round_if(rounds, sum);
}

constexpr int64_t kRowsAtOnce = 512;  // bounds the workspace and the grid

}  // namespace

void moe(Context& context, const Activation& activation, TensorView z, TensorView ids, TensorView weights,
         const ExpertTable& experts, MutableTensorView out) {
  const int64_t size = z.shape[1];
  const int64_t chosen = ids.shape[1];
  if (z.shape[0] == 0 || size == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const auto filled = std::ranges::find_if(experts.views, [](const ExpertView& view) { return view.w1.data != nullptr; });
  if (filled == experts.views.end()) fail(ErrorKind::internal, "moe", "wanted at least one expert, found none");
  const ExpertView& first = *filled;  // all have the same shapes and format
  const int64_t middle = first.w1.out;
  const ExpertView* table = experts.device != nullptr ? experts.device : device_table(context, experts.views).data();
  const ActivationRule rule(activation);
  const bool rounds = context.rounds();
  const auto* all_ids = reinterpret_cast<const int32_t*>(ids.data);
  const int64_t rows_at_once = std::min(z.shape[0], kRowsAtOnce);
  const MutableTensorView hidden = context.workspace->take({rows_at_once * chosen, middle});
  const MutableTensorView y = context.workspace->take({rows_at_once * chosen, size});
  for (int64_t row = 0; row < z.shape[0]; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, z.shape[0] - row);
    const auto pairs = static_cast<unsigned>(rows * chosen);
    const int32_t* some_ids = all_ids + row * chosen;
    // z and the workspace are aligned alike, and the experts' weights among each other.
    const bool vector = vector_loads(first.w1, z.data) && vector_loads(first.w3, z.data) && vector_loads(first.w2, hidden.data);
    with_format(first.w1.format, vector, [&](auto format, auto flag) {
      hidden_kernel<format(), flag()><<<dim3(blocks_for(middle, kBlockOutputs), pairs), kThreads, 0, stream_of(context)>>>(
          rule, floats(z) + row * size, some_ids, chosen, table, floats(hidden), rounds);
      down_kernel<format(), flag()><<<dim3(blocks_for(size, kBlockOutputs), pairs), kThreads, 0, stream_of(context)>>>(
          floats(hidden), some_ids, table, floats(y), rounds);
    });
    combine_kernel<<<dim3(blocks_for(size, kThreads), static_cast<unsigned>(rows)), kThreads, 0, stream_of(context)>>>(
        floats(y), floats(weights) + row * chosen, chosen, size, floats(out) + row * size, rounds);
  }
  launched("moe");
}

}  // namespace weft::ops::cuda
