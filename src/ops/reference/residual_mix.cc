#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fault.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {

void residual_mix(Context& context, std::span<const TensorView> sources, TensorView w, float eps, MutableTensorView out,
                  std::span<float> probabilities) {
  const int64_t rows = out.shape[0];
  const int64_t size = out.shape[1];
  const auto count = static_cast<int64_t>(sources.size());
  const float* ws = w.as<float>().data();
  float* to = out.as<float>().data();
  const bool rounds = context.rounds();
  context.pool->parallel_for(rows, task_grain(context, rows, 6 * size * count), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> p;
    p.resize(sources.size());
    for (int64_t t = begin; t < end; ++t) {
      float* mix = to + t * size;
      if (count == 1) {
        std::copy_n(sources[0].as<float>().data() + t * size, size, mix);
        if (!probabilities.empty()) probabilities[static_cast<size_t>(t)] = 1.0F;
        continue;
      }
      float max = -INFINITY;
      for (size_t i = 0; i < sources.size(); ++i) {
        const float* v = sources[i].as<float>().data() + t * size;
        const float r = 1.0F / std::sqrt(lane_dot(v, v, size) / static_cast<float>(size) + eps);
        p[i] = r * lane_dot(v, ws, size);
        max = std::max(max, p[i]);
      }
      float sum = 0.0F;
      for (float& value : p) sum += value = std::exp(value - max);
      for (float& value : p) value /= sum;
      if (on(Fault::mix_of_normalised_vectors)) {
        for (size_t i = 0; i < sources.size(); ++i) {
          const float* v = sources[i].as<float>().data() + t * size;
          p[i] /= std::sqrt(lane_dot(v, v, size) / static_cast<float>(size) + eps);
        }
      }
      std::fill_n(mix, size, 0.0F);
      for (size_t i = 0; i < sources.size(); ++i) {
        const float* v = sources[i].as<float>().data() + t * size;
        for (int64_t c = 0; c < size; ++c) mix[c] += p[i] * v[c];
      }
      if (rounds) {
        for (int64_t c = 0; c < size; ++c) mix[c] = round_bf16(mix[c]);
      }
      if (!probabilities.empty()) std::ranges::copy(p, probabilities.begin() + t * count);
    }
  });
}

}  // namespace weft::ops::reference
