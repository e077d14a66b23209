#include <cfloat>

#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"

namespace weft::ops::cuda {
namespace {

struct Best {
  float value;
  int32_t expert;
};
__device__ bool better(const Best& a, const Best& b) { return a.value != b.value ? a.value > b.value : a.expert < b.expert; }

__device__ Best warp_best(Best best) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(0xffffffffU, best.value, step), __shfl_xor_sync(0xffffffffU, best.expert, step)};
    if (better(other, best)) best = other;
  }
  return best;
}

// The best of the selection scores [experts], for all threads. Synchronises the block.
__device__ Best block_best(const float* selection, int32_t experts) {
  __shared__ Best parts[kWarps];
  Best best{-INFINITY, INT32_MAX};
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kThreads) {
    if (better({selection[e], e}, best)) best = {selection[e], e};
  }
  best = warp_best(best);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (const Best& part : parts) {
    if (better(part, best)) best = part;
  }
  return best;
}

// A block for a row: takes the best expert k times (and once more for the margin). A score that is no number is chosen last and
// makes all weights of its row NaN. Dynamic shared memory: scores and selection [E], chosen [k].
__global__ void __launch_bounds__(kThreads) route_kernel(RouterRule rule, const float* logits, const float* bias,
                                                         int32_t experts, int32_t* ids, float* weights, float* margins) {
  extern __shared__ float memory[];
  __shared__ int faulty;
  float* score = memory;
  float* selection = memory + experts;
  auto* chosen = reinterpret_cast<int32_t*>(memory + 2 * experts);
  const auto k = static_cast<int32_t>(rule.experts_per_token);
  const int64_t row = blockIdx.x;
  if (threadIdx.x == 0) faulty = 0;
  __syncthreads();
  const bool softmax = rule.score == RouterRule::Score::softmax;
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kThreads) {
    const float logit = logits[row * experts + e];
    score[e] = softmax ? logit : sigmoid(logit);
    const float value = softmax ? logit : score[e] + bias[e];
    if (isnan(value) || (softmax && value == INFINITY)) faulty = 1;
    // Below every number that is not yet taken, above what is.
    selection[e] = isnan(value) ? -FLT_MAX : value;
  }
  __syncthreads();
  if (softmax) {
    const float max = block_best(selection, experts).value;
    float sum = 0.0F;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kThreads) sum += score[e] = expf(score[e] - max);
    sum = block_sum(sum);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < experts; e += kThreads) score[e] /= sum;
    __syncthreads();
  }
  float last = 0.0F;
  for (int32_t i = 0; i < k; ++i) {
    const Best best = block_best(selection, experts);
    last = best.value;
    if (threadIdx.x == 0) {
      chosen[i] = best.expert;
      selection[best.expert] = -INFINITY;
    }
    __syncthreads();
  }
  if (margins != nullptr) {
    const float next = k < experts ? block_best(selection, experts).value : -INFINITY;
    if (threadIdx.x == 0) margins[row] = k < experts ? last - next : INFINITY;
  }
  if (threadIdx.x != 0) return;
  for (int32_t i = 1; i < k; ++i) {  // k is small: insertion into ascending order
    const int32_t id = chosen[i];
    int32_t at = i;
    for (; at > 0 && chosen[at - 1] > id; --at) chosen[at] = chosen[at - 1];
    chosen[at] = id;
  }
  float sum = 0.0F;
  for (int32_t i = 0; i < k; ++i) sum += score[chosen[i]];
  for (int32_t i = 0; i < k; ++i) {
    float weight = score[chosen[i]];
    if (rule.renormalize && softmax) weight /= sum;
    if (rule.renormalize && !softmax && k > 1) weight /= sum + 1e-20F;
    ids[row * k + i] = chosen[i];
    weights[row * k + i] = faulty != 0 ? NAN : weight * rule.scale;
  }
}

}  // namespace

void route(Context& context, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins) {
  if (logits.shape[0] == 0) return;
  const auto experts = static_cast<int32_t>(logits.shape[1]);
  const auto shared = static_cast<size_t>(2 * experts + rule.experts_per_token) * sizeof(float);
  route_kernel<<<static_cast<unsigned>(logits.shape[0]), kThreads, shared, stream_of(context)>>>(
      rule, floats(logits), floats(bias), experts, reinterpret_cast<int32_t*>(ids.data), floats(weights),
      margins.empty() ? nullptr : margins.data());
  launched("route");
}

}  // namespace weft::ops::cuda
