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
constexpr int kMaxKeySize = 256;

struct Operands {
  const float *q, *k, *v, *g, *beta_logits;  // as delta_rule says
  float* o;
  DeltaShape shape;
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
    delta_kernel(Operands operands, const StateSegment* segments, int64_t segment_count, bool rounds) {
  __shared__ float q[kMaxKeySize];
  __shared__ float k[kMaxKeySize];
  __shared__ float decay[kMaxKeySize];
  const DeltaShape& shape = operands.shape;
  const int64_t keys = shape.key_size;
  const int64_t values = shape.value_size;
  const int64_t head = blockIdx.y;
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = lane / kLaneColumns;
  const int64_t column =
      static_cast<int64_t>(blockIdx.x) * kBlockColumns + threadIdx.x / kWarp * kLaneColumns + lane % kLaneColumns;
  const float scale = 1.0F / sqrtf(static_cast<float>(keys));
  for_each_chained(segments, segment_count, blockIdx.z, [&](const StateSegment& segment) {
    float s[kKeysPerLane];
#pragma unroll
    for (int n = 0; n < kKeysPerLane; ++n) {
      const int64_t i = n * kKeyParts + part;
      const bool inside = i < keys && column < values && segment.in != nullptr;
      s[n] = inside ? segment.in[(head * keys + i) * values + column] : 0.0F;
    }
    for (int64_t t = segment.first_row; t < segment.first_row + segment.row_count; ++t) {
      const int64_t key_at = (t * shape.key_heads + key_head) * keys;
      const int64_t at = t * shape.value_heads + head;
      float2 squares{0.0F, 0.0F};
      for (int64_t i = threadIdx.x; i < keys; i += kBlockThreads) {
        squares.x += operands.q[key_at + i] * operands.q[key_at + i];
        squares.y += operands.k[key_at + i] * operands.k[key_at + i];
      }
      squares = pair_sum(squares);  // its barrier also ends the reads of the token before
      for (int64_t i = threadIdx.x; i < keys; i += kBlockThreads) {
        q[i] = operands.q[key_at + i] / sqrtf(squares.x + kNormEpsilon) * scale;
        k[i] = operands.k[key_at + i] / sqrtf(squares.y + kNormEpsilon);
        decay[i] = expf(operands.g[shape.decay_per_channel ? at * keys + i : at]);
      }
      __syncthreads();
      float along_k = 0.0F;  // S^T k of the decayed state
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        const int64_t i = n * kKeyParts + part;
        if (i >= keys) continue;
        s[n] *= decay[i];
        along_k += k[i] * s[n];
      }
      const float v = column < values ? operands.v[at * values + column] : 0.0F;
      const float u = sigmoid(operands.beta_logits[at]) * (v - column_sum(along_k));
      float along_q = 0.0F;
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        const int64_t i = n * kKeyParts + part;
        if (i >= keys) continue;
        s[n] += k[i] * u;
        along_q += q[i] * s[n];
      }
      along_q = column_sum(along_q);
      if (part == 0 && column < values) operands.o[at * values + column] = round_if(rounds, along_q);
    }
#pragma unroll
    for (int n = 0; n < kKeysPerLane; ++n) {
      const int64_t i = n * kKeyParts + part;
      if (i < keys && column < values) segment.out[(head * keys + i) * values + column] = s[n];
    }
  });
}

}  // namespace

void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o) {
  if (segments.empty()) return;
  const int64_t keys = shape.key_size;
  if (keys > kMaxKeySize) {
    fail(ErrorKind::unsupported, "delta_rule", "on a GPU: wanted keys of at most {}, found {}", kMaxKeySize, keys);
  }
  const Workspace::Scope scope(*context.workspace);
  const std::span<const StateSegment> there = device_table(context, segments);
  const Operands operands{floats(q), floats(k), floats(v), floats(g), floats(beta_logits), floats(o), shape};
  const dim3 grid(blocks_for(shape.value_size, kBlockColumns), static_cast<unsigned>(shape.value_heads),
                  static_cast<unsigned>(segments.size()));
  const auto run = keys <= 32    ? delta_kernel<8>
                   : keys <= 64  ? delta_kernel<16>
                   : keys <= 128 ? delta_kernel<32>
                                 : delta_kernel<64>;
  run<<<grid, kBlockThreads, 0, stream_of(context)>>>(operands, there.data(), static_cast<int64_t>(there.size()),
                                                      context.rounds());
  launched("delta_rule");
}

}  // namespace weft::ops::cuda
