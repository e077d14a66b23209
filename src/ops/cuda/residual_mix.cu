#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"

namespace weft::ops::cuda {
namespace {

constexpr int kMaxSources = 64;  // K3 has 9; they travel as a kernel parameter

struct Sources {
  const float* data[kMaxSources];
  int count = 0;
};

// A block for a row.
__global__ void __launch_bounds__(kThreads) residual_mix_kernel(Sources sources, const float* w, int64_t size, float eps,
                                                                float* out, float* probabilities, bool rounds) {
  __shared__ float p[kMaxSources];
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const int64_t at = row * size;
  for (int i = 0; i < sources.count; ++i) {
    float squares = 0.0F;
    float product = 0.0F;
    for (int64_t c = threadIdx.x; c < size; c += kThreads) {
      const float v = sources.data[i][at + c];
      squares += v * v;
      product += v * w[c];
    }
    squares = block_sum(squares);
    product = block_sum(product);
    if (threadIdx.x == 0) p[i] = product / sqrtf(squares / static_cast<float>(size) + eps);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float max = -INFINITY;
    for (int i = 0; i < sources.count; ++i) max = fmaxf(max, p[i]);
    float sum = 0.0F;
    for (int i = 0; i < sources.count; ++i) sum += p[i] = expf(p[i] - max);
    for (int i = 0; i < sources.count; ++i) p[i] /= sum;
    if (probabilities != nullptr) {
      for (int i = 0; i < sources.count; ++i) probabilities[row * sources.count + i] = p[i];
    }
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < size; c += kThreads) {
    float mix = 0.0F;
    for (int i = 0; i < sources.count; ++i) mix += p[i] * sources.data[i][at + c];
    // One source is copied as it is.
    out[at + c] = sources.count == 1 ? sources.data[0][at + c] : round_if(rounds, mix);
  }
}

}  // namespace

void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities) {
  if (sources.size() > kMaxSources) {
    fail(ErrorKind::internal, "residual_mix", "wanted at most {} sources, found {}", kMaxSources, sources.size());
  }
  if (out.shape[0] == 0) return;
  Sources there;
  for (const TensorView& source : sources) there.data[there.count++] = floats(source);
  residual_mix_kernel<<<static_cast<unsigned>(out.shape[0]), kThreads, 0, stream_of(context)>>>(
      there, floats(w), out.shape[1], eps, floats(out), probabilities.empty() ? nullptr : probabilities.data(),
      context.rounds());
  launched("residual_mix");
}

}  // namespace weft::ops::cuda
