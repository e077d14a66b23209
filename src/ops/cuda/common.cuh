// What the kernels share: launches, sums over warps and blocks, scalar functions, rounding.
//
// Geometry: kThreads threads in a block; a warp for a row of a weight, a block for a row of a tensor, a thread for an element.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "tensor/cuda_device.h"

namespace weft::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / kWarp;

[[nodiscard]] inline CudaDevice& device_of(const Context& context) { return static_cast<CudaDevice&>(*context.device); }
[[nodiscard]] inline cudaStream_t stream_of(const Context& context) { return device_of(context).stream(); }

// The elements of a tensor in device memory. (as() would do too; this names what it is.)
[[nodiscard]] inline const float* floats(const TensorView& view) { return reinterpret_cast<const float*>(view.data); }
[[nodiscard]] inline float* floats(const MutableTensorView& view) { return reinterpret_cast<float*>(view.data); }

[[nodiscard]] inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// After each launch: a bad geometry is found here, a fault of the kernel by the next call that waits.
inline void launched(std::string_view op) { check_cuda(cudaGetLastError(), op); }

// ---- scalar functions (formulas: K3 spec 3.0, 3.4, 3.6; the host's are in ops/math.h) ----

__device__ inline float round_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return value;  // NaN stays NaN
  return __uint_as_float((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
}
__device__ inline float round_if(bool rounds, float value) { return rounds ? round_bf16(value) : value; }

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return x >= 0.0F ? 1.0F / (1.0F + e) : e / (1.0F + e);
}
__device__ inline float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

// Activation in a form that a kernel takes by value.
struct ActivationRule {
  bool situ = true;
  float beta = 1.0F;
  bool bounds_up = false;
  float linear_beta = 1.0F;

  explicit ActivationRule(const Activation& from)
      : situ(from.kind == Activation::Kind::situ),
        beta(from.beta),
        bounds_up(from.linear_beta.has_value()),
        linear_beta(from.linear_beta.value_or(1.0F)) {}
};
__device__ inline float activate(const ActivationRule& rule, float gate, float up) {
  if (!rule.situ) return gate * sigmoid(gate) * up;
  const float bounded_gate = rule.beta * tanhf(gate / rule.beta) * sigmoid(gate);
  const float bounded_up = rule.bounds_up ? rule.linear_beta * tanhf(up / rule.linear_beta) : up;
  return bounded_gate * bounded_up;
}

// ---- sums ----

__device__ inline float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// The sum over the block's kThreads threads, for all of them. Synchronises the block.
__device__ inline float block_sum(float value) {
  __shared__ float parts[kWarps];
  value = warp_sum(value);
  __syncthreads();  // an earlier call's parts have been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0.0F;
  for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp];
  return sum;
}

}  // namespace weft::ops::cuda
