#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fault.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"
#include "ops/sum.h"

namespace weft::ops::reference {
namespace {

constexpr float kNormEpsilon = 1e-6F;  // added to the sum of squares, not to the mean (K3 spec 8.1)

// One token of one head. s [d key, d value] is updated; work has room for 3 d values.
void step(int64_t d, const float* q_raw, const float* k_raw, const float* v, const float* g, float beta, float* s, float* work,
          float* o) {
  const float epsilon = on(Fault::l2norm_epsilon_on_mean) ? kNormEpsilon * static_cast<float>(d) : kNormEpsilon;
  const auto inverse_norm = [d, epsilon](const float* x) { return 1.0F / std::sqrt(lane_dot(x, x, d) + epsilon); };
  const float q_factor = inverse_norm(q_raw);
  const float k_factor = inverse_norm(k_raw);
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  float* k = work;
  float* u = work + d;  // first S^T k of the decayed state, then beta (v - S^T k)
  float* sum = work + 2 * d;
  for (int64_t i = 0; i < d; ++i) k[i] = k_raw[i] * k_factor;

  std::fill_n(u, d, 0.0F);
  for (int64_t i = 0; i < d; ++i) {
    const float decay = std::exp(g[i]);
    for (int64_t j = 0; j < d; ++j) {
      if (on(Fault::delta_from_undecayed_state)) u[j] += k[i] * s[i * d + j] * (1.0F - decay);
      s[i * d + j] *= decay;
      u[j] += k[i] * s[i * d + j];
    }
  }
  for (int64_t j = 0; j < d; ++j) u[j] = beta * (v[j] - u[j]);

  std::fill_n(sum, d, 0.0F);
  for (int64_t i = 0; i < d; ++i) {
    const float q = q_raw[i] * q_factor * scale;
    for (int64_t j = 0; j < d; ++j) {
      if (on(Fault::output_before_update)) sum[j] -= q * k[i] * u[j];
      s[i * d + j] += k[i] * u[j];
      sum[j] += q * s[i * d + j];
    }
  }
  std::copy_n(sum, d, o);
}

}  // namespace

void kda_recurrence(Context& context, TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta_logits,
                    std::span<const StateSegment> segments, MutableTensorView o) {
  const int64_t rows = beta_logits.shape[0];
  const int64_t heads = beta_logits.shape[1];
  const int64_t width = q.shape[1];
  const int64_t d = width / heads;
  const float* qs = q.as<float>().data();
  const float* ks = k.as<float>().data();
  const float* vs = v.as<float>().data();
  const float* gs = g.as<float>().data();
  const float* betas = beta_logits.as<float>().data();
  float* os = o.as<float>().data();
  const bool rounds = context.rounds();
  context.pool->parallel_for(heads, task_grain(context, heads, 2 * rows * d * d), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> work;
    work.resize(static_cast<size_t>(3 * d));
    for (int64_t head = begin; head < end; ++head) {
      for (const StateSegment& segment : segments) {
        float* s = segment.out + head * d * d;
        if (segment.in == nullptr) {
          std::fill_n(s, d * d, 0.0F);
        } else if (segment.in != segment.out) {
          std::copy_n(segment.in + head * d * d, d * d, s);
        }
        for (int64_t t = segment.first_row; t < segment.first_row + segment.row_count; ++t) {
          const int64_t at = t * width + head * d;
          step(d, qs + at, ks + at, vs + at, gs + at, sigmoid(betas[t * heads + head]), s, work.data(), os + at);
          if (!rounds) continue;
          for (int64_t j = 0; j < d; ++j) os[at + j] = round_bf16(os[at + j]);
        }
      }
    }
  });
}

}  // namespace weft::ops::reference
