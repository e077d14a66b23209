#include "ops/cuda/cuda.h"
#include "ops/cuda/segments.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

constexpr float kNormEpsilon = 1e-6F;  // added to the sum of squares, not to the mean (K3 spec 8.1)
constexpr int kLaneColumns = 8;        // value columns of a warp: 32 bytes of a state row
constexpr int kKeyParts = kWarp / kLaneColumns;
constexpr int kBlockThreads = 128;
constexpr int kBlockColumns = kBlockThreads / kWarp * kLaneColumns;
constexpr int kMaxHeadSize = 256;

struct Operands {
  const float *q, *k, *v, *g, *beta_logits;  // [T, H*d], beta [T, H]
  float* o;
  int64_t heads, d;
};

// Sums over the block's kBlockThreads threads of two values.
__device__ float2 pair_sum(float2 value) {
  __shared__ float2 parts[kBlockThreads / kWarp];
  value = {warp_sum(value.x), warp_sum(value.y)};
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float2 sum{0.0F, 0.0F};
  for (const float2& part : parts) sum = {sum.x + part.x, sum.y + part.y};
  return sum;
}

// The sum over the key parts of a column: lanes with equal lane % kLaneColumns.
__device__ float column_sum(float value) {
  for (int step = kLaneColumns; step < kWarp; step *= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// Grid (groups of kBlockColumns value columns, heads, segments). Value columns are independent: a lane holds every kKeyParts-th
// key row of one column in registers over all tokens of the segment.
template <int kKeysPerLane>
__global__ void __launch_bounds__(kBlockThreads)
    kda_kernel(Operands operands, const StateSegment* segments, int64_t segment_count, bool rounds) {
  __shared__ float q[kMaxHeadSize];
  __shared__ float k[kMaxHeadSize];
  __shared__ float decay[kMaxHeadSize];
  const int64_t d = operands.d;
  const int64_t head = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = lane / kLaneColumns;
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kBlockColumns + threadIdx.x / kWarp * kLaneColumns + lane % kLaneColumns;
  const float scale = 1.0F / sqrtf(static_cast<float>(d));
  for_each_chained(segments, segment_count, blockIdx.z, [&](const StateSegment& segment) {
    float s[kKeysPerLane];
#pragma unroll
    for (int n = 0; n < kKeysPerLane; ++n) {
      const int64_t i = n * kKeyParts + part;
      const bool inside = i < d && column < d && segment.in != nullptr;
      s[n] = inside ? segment.in[(head * d + i) * d + column] : 0.0F;
    }
    for (int64_t t = segment.first_row; t < segment.first_row + segment.row_count; ++t) {
      const int64_t at = (t * operands.heads + head) * d;
      float2 squares{0.0F, 0.0F};
      for (int64_t i = threadIdx.x; i < d; i += kBlockThreads) {
        squares.x += operands.q[at + i] * operands.q[at + i];
        squares.y += operands.k[at + i] * operands.k[at + i];
      }
      squares = pair_sum(squares);  // its barrier also ends the reads of the token before
      for (int64_t i = threadIdx.x; i < d; i += kBlockThreads) {
        q[i] = operands.q[at + i] / sqrtf(squares.x + kNormEpsilon) * scale;
        k[i] = operands.k[at + i] / sqrtf(squares.y + kNormEpsilon);
        decay[i] = expf(operands.g[at + i]);
      }
      __syncthreads();
      float along_k = 0.0F;  // S^T k of the decayed state
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        const int64_t i = n * kKeyParts + part;
        if (i >= d) continue;
        s[n] *= decay[i];
        along_k += k[i] * s[n];
      }
      const float v = column < d ? operands.v[at + column] : 0.0F;
      const float u = sigmoid(operands.beta_logits[t * operands.heads + head]) * (v - column_sum(along_k));
      float along_q = 0.0F;
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        const int64_t i = n * kKeyParts + part;
        if (i >= d) continue;
        s[n] += k[i] * u;
        along_q += q[i] * s[n];
      }
      along_q = column_sum(along_q);
      if (part == 0 && column < d) operands.o[at + column] = round_if(rounds, along_q);
    }
#pragma unroll
    for (int n = 0; n < kKeysPerLane; ++n) {
      const int64_t i = n * kKeyParts + part;
      if (i < d && column < d) segment.out[(head * d + i) * d + column] = s[n];
    }
  });
}

}  // namespace

void kda_recurrence(Context& context, TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta_logits,
                    std::span<const StateSegment> segments, MutableTensorView o) {
  const int64_t heads = beta_logits.shape[1];
  const int64_t d = q.shape[1] / heads;
  if (segments.empty() || d == 0) return;
  if (d > kMaxHeadSize) fail(ErrorKind::unsupported, "kda_recurrence", "wanted heads of at most {}, found {}", kMaxHeadSize, d);
  const Workspace::Scope scope(*context.workspace);
  const std::span<const StateSegment> there = device_table(context, segments);
  const Operands operands{floats(q), floats(k), floats(v), floats(g), floats(beta_logits), floats(o), heads, d};
  const dim3 grid(blocks_for(d, kBlockColumns), static_cast<unsigned>(heads), static_cast<unsigned>(segments.size()));
  const auto run = d <= 32 ? kda_kernel<8> : d <= 64 ? kda_kernel<16> : d <= 128 ? kda_kernel<32> : kda_kernel<64>;
  run<<<grid, kBlockThreads, 0, stream_of(context)>>>(operands, there.data(), static_cast<int64_t>(there.size()),
                                                      context.rounds());
  launched("kda_recurrence");
}

}  // namespace weft::ops::cuda
