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

// One token of one value head.
struct Token {
  const float* q = nullptr;  // [dk]
  const float* k = nullptr;  // [dk]
  const float* v = nullptr;  // [dv]
  const float* g = nullptr;  // [dk] or [1]
  float beta = 0.0F;
  float* o = nullptr;  // [dv]
};

// s [dk, dv] is updated; work has room for dk + 2 dv values.
void step(const DeltaShape& shape, const Token& token, float* s, float* work) {
  const int64_t keys = shape.key_size;
  const int64_t values = shape.value_size;
  const float epsilon = on(Fault::l2norm_epsilon_on_mean) ? kNormEpsilon * static_cast<float>(keys) : kNormEpsilon;
  const auto inverse_norm = [keys, epsilon](const float* x) { return 1.0F / std::sqrt(lane_dot(x, x, keys) + epsilon); };
  const float q_factor = inverse_norm(token.q);
  const float k_factor = inverse_norm(token.k);
  const float scale = 1.0F / std::sqrt(static_cast<float>(keys));
  float* k = work;
  float* u = work + keys;  // first S^T k of the decayed state, then beta (v - S^T k)
  float* sum = u + values;
  for (int64_t i = 0; i < keys; ++i) k[i] = token.k[i] * k_factor;

  std::fill_n(u, values, 0.0F);
  for (int64_t i = 0; i < keys; ++i) {
    const float decay = std::exp(token.g[shape.decay_per_channel ? i : 0]);
    for (int64_t j = 0; j < values; ++j) {
      if (on(Fault::delta_from_undecayed_state)) u[j] += k[i] * s[i * values + j] * (1.0F - decay);
      s[i * values + j] *= decay;
      u[j] += k[i] * s[i * values + j];
    }
  }
  for (int64_t j = 0; j < values; ++j) u[j] = token.beta * (token.v[j] - u[j]);

  std::fill_n(sum, values, 0.0F);
  for (int64_t i = 0; i < keys; ++i) {
    const float q = token.q[i] * q_factor * scale;
    for (int64_t j = 0; j < values; ++j) {
      if (on(Fault::output_before_update)) sum[j] -= q * k[i] * u[j];
      s[i * values + j] += k[i] * u[j];
      sum[j] += q * s[i * values + j];
    }
  }
  std::copy_n(sum, values, token.o);
}

}  // namespace

void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o) {
  const int64_t rows = beta_logits.shape[0];
  const int64_t heads = shape.value_heads;
  const int64_t group = heads / shape.key_heads;
  const int64_t keys = shape.key_size;
  const int64_t values = shape.value_size;
  const int64_t decays = shape.decay_per_channel ? keys : 1;  // of a head
  const float* qs = q.as<float>().data();
  const float* ks = k.as<float>().data();
  const float* vs = v.as<float>().data();
  const float* gs = g.as<float>().data();
  const float* betas = beta_logits.as<float>().data();
  float* os = o.as<float>().data();
  const bool rounds = context.rounds();
  context.pool->parallel_for(heads, task_grain(context, heads, 2 * rows * keys * values), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> work;
    work.resize(static_cast<size_t>(keys + 2 * values));
    for (int64_t head = begin; head < end; ++head) {
      for (const StateSegment& segment : segments) {
        float* s = segment.out + head * keys * values;
        if (segment.in == nullptr) {
          std::fill_n(s, keys * values, 0.0F);
        } else if (segment.in != segment.out) {
          std::copy_n(segment.in + head * keys * values, keys * values, s);
        }
        for (int64_t t = segment.first_row; t < segment.first_row + segment.row_count; ++t) {
          const int64_t key_at = (t * shape.key_heads + head / group) * keys;
          const int64_t at = t * heads + head;
          float* to = os + at * values;
          step(shape, {qs + key_at, ks + key_at, vs + at * values, gs + at * decays, sigmoid(betas[at]), to}, s, work.data());
          for (int64_t j = 0; j < values; ++j) to[j] = round_if(rounds, to[j]);
        }
      }
    }
  });
}

}  // namespace weft::ops::reference
