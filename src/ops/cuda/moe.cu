#include <algorithm>

#include "ops/cuda/cuda.h"
#include "ops/cuda/tables.h"
#include "ops/cuda/weight.cuh"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

constexpr int kOutputs = 4;                       // of a warp, for each weight
constexpr int kBlockOutputs = kWarps * kOutputs;  // of a block

// A pair is one row at one of its experts; pair p belongs to row p / k. Expert pointers are read from the table on the device.

// The row of an expert's input in shared memory, for MXFP4: a lane takes whole groups, 16 bytes of codes at a time, so that
// many bytes are on their way at once. A group of 32 columns takes kStride floats there, so that lanes meet different banks.
constexpr int kGroup = 32;
constexpr int kStride = kGroup + 4;
constexpr size_t kMostShared = 48 << 10;

// Whether the kernels stage rows of `width` columns; the bytes that it takes.
size_t staged_bytes(WeightFormat format, bool vector, int64_t width) {
  if (format != WeightFormat::mxfp4 || !vector) return 0;
  const auto bytes = static_cast<size_t>(width / kGroup * kStride) * sizeof(float);
  return bytes <= kMostShared ? bytes : 0;
}

__device__ void stage_row(const float* row, int64_t width, float* staged) {
  for (int64_t c = threadIdx.x; c < width; c += kThreads) staged[c / kGroup * kStride + c % kGroup] = row[c];
  __syncthreads();
}

// sum[o] += this lane's share of <row first + o of the weight, the staged row>.
__device__ void staged_dots(const WeightView& weight, int64_t first, const float* staged, float (&sum)[kOutputs][1]) {
  const int64_t groups = weight.in / kGroup;
  for (int64_t g = threadIdx.x % kWarp; g < groups; g += kWarp) {
    uint4 codes[kOutputs];
    float factor[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int64_t group = min(first + o, weight.out - 1) * groups + g;
      codes[o] = __ldcs(reinterpret_cast<const uint4*>(weight.data) + group);
      factor[o] = kE2m1Factor * e8m0(static_cast<uint8_t>(weight.scales[group]));
    }
    float partial[kOutputs] = {};
#pragma unroll
    for (int quarter = 0; quarter < kGroup / kColumns; ++quarter) {
      const Columns x = load_activations<true>(staged, g * kStride + quarter * kColumns, 0);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const uint32_t words[4] = {codes[o].x, codes[o].y, codes[o].z, codes[o].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t pair = e2m1_pair(words[quarter] >> (4 * j));
          partial[o] += half_bits(pair) * x.value[j];
          partial[o] += half_bits(pair >> 16) * x.value[j + 4];
        }
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sum[o][0] += partial[o] * factor[o];
  }
}

// The dots of the row at `row`, staged if the launch gave memory for it.
template <WeightFormat kFormat, bool kVector>
__device__ void expert_dots(const WeightView& weight, int64_t first, const float* row, const float* staged, bool is_staged,
                            float (&sum)[kOutputs][1]) {
  if constexpr (kFormat == WeightFormat::mxfp4 && kVector) {
    if (is_staged) return staged_dots(weight, first, staged, sum);
  }
  lane_dots<kFormat, kVector, kOutputs, 1>(weight, first, weight.out, row, 0, 1, 0, 1, sum);
}

// Grid (groups of kBlockOutputs hidden values, pairs). hidden [pairs, M] = act(w1 z, w3 z).
template <WeightFormat kFormat, bool kVector>
__global__ void __launch_bounds__(kThreads)
    hidden_kernel(ActivationRule rule, const float* z, const int32_t* ids, int64_t chosen, const ExpertView* experts,
                  float* hidden, bool rounds, bool staged) {
  extern __shared__ float4 memory[];
  auto* const shared = reinterpret_cast<float*>(memory);
  const int64_t pair = blockIdx.y;
  const ExpertView expert = experts[ids[pair]];
  const int64_t middle = expert.w1.out;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockOutputs + threadIdx.x / kWarp * kOutputs;
  const float* row = z + pair / chosen * expert.w1.in;
  if (staged) stage_row(row, expert.w1.in, shared);
  if (first >= middle) return;
  float gate[kOutputs][1] = {};
  float up[kOutputs][1] = {};
  expert_dots<kFormat, kVector>(expert.w1, first, row, shared, staged, gate);
  expert_dots<kFormat, kVector>(expert.w3, first, row, shared, staged, up);
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
    down_kernel(const float* hidden, const int32_t* ids, const ExpertView* experts, float* y, bool rounds, bool staged) {
  extern __shared__ float4 memory[];
  auto* const shared = reinterpret_cast<float*>(memory);
  const int64_t pair = blockIdx.y;
  const WeightView weight = experts[ids[pair]].w2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockOutputs + threadIdx.x / kWarp * kOutputs;
  const float* row = hidden + pair * weight.in;
  if (staged) stage_row(row, weight.in, shared);
  if (first >= weight.out) return;
  float sum[kOutputs][1] = {};
  expert_dots<kFormat, kVector>(weight, first, row, shared, staged, sum);
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
    const size_t shared_z = staged_bytes(first.w1.format, vector, size);
    const size_t shared_hidden = staged_bytes(first.w1.format, vector, middle);
    with_format(first.w1.format, vector, [&](auto format, auto flag) {
      hidden_kernel<format(), flag()>
          <<<dim3(blocks_for(middle, kBlockOutputs), pairs), kThreads, shared_z, stream_of(context)>>>(
              rule, floats(z) + row * size, some_ids, chosen, table, floats(hidden), rounds, shared_z > 0);
      down_kernel<format(), flag()>
          <<<dim3(blocks_for(size, kBlockOutputs), pairs), kThreads, shared_hidden, stream_of(context)>>>(
              floats(hidden), some_ids, table, floats(y), rounds, shared_hidden > 0);
    });
    combine_kernel<<<dim3(blocks_for(size, kThreads), static_cast<unsigned>(rows)), kThreads, 0, stream_of(context)>>>(
        floats(y), floats(weights) + row * chosen, chosen, size, floats(out) + row * size, rounds);
  }
  launched("moe");
}

}  // namespace weft::ops::cuda
