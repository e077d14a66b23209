#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/targets.h"
#include "ops/math.h"
#include "ops/split.h"
#include "ops/sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kda_recurrence.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef WEFT_OPS_CPU_KDA_ONCE
#define WEFT_OPS_CPU_KDA_ONCE
namespace weft::ops::cpu {

inline constexpr float kKdaNormEpsilon = 1e-6F;  // added to the sum of squares, not to the mean (K3 spec 8.1)

// One token of one head: vectors of d values. q and k are normalised, q is scaled.
struct KdaToken {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* decay = nullptr;  // exp(g)
  const float* v = nullptr;
  float beta = 0.0F;
  float* o = nullptr;
};

}  // namespace weft::ops::cpu
#endif  // WEFT_OPS_CPU_KDA_ONCE

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Value columns [column, column + kColumns vectors): they are independent of all other columns, so that the result of a column
// does not depend on how columns are grouped.
template <int kColumns, class D>
HWY_INLINE void kda_columns(D d, const KdaToken& token, int64_t size, int64_t column, float* HWY_RESTRICT state) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  V u[kColumns];
  V sum[kColumns];
  for (int c = 0; c < kColumns; ++c) u[c] = hn::Zero(d);
  for (int64_t i = 0; i < size; ++i) {
    const V decay = hn::Set(d, token.decay[i]);
    const V k = hn::Set(d, token.k[i]);
    float* row = state + i * size + column;
    for (int c = 0; c < kColumns; ++c) {
      const V s = hn::Mul(hn::LoadU(d, row + c * lanes), decay);
      hn::StoreU(s, d, row + c * lanes);
      u[c] = hn::MulAdd(k, s, u[c]);
    }
  }
  const V beta = hn::Set(d, token.beta);
  for (int c = 0; c < kColumns; ++c) {
    u[c] = hn::Mul(beta, hn::Sub(hn::LoadU(d, token.v + column + c * lanes), u[c]));
    sum[c] = hn::Zero(d);
  }
  for (int64_t i = 0; i < size; ++i) {
    const V q = hn::Set(d, token.q[i]);
    const V k = hn::Set(d, token.k[i]);
    float* row = state + i * size + column;
    for (int c = 0; c < kColumns; ++c) {
      const V s = hn::MulAdd(k, u[c], hn::LoadU(d, row + c * lanes));
      hn::StoreU(s, d, row + c * lanes);
      sum[c] = hn::MulAdd(q, s, sum[c]);
    }
  }
  for (int c = 0; c < kColumns; ++c) hn::StoreU(sum[c], d, token.o + column + c * lanes);
}

void kda_step(const KdaToken& token, int64_t size, float* state) {
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(d));
  int64_t column = 0;
  for (; column + 4 * lanes <= size; column += 4 * lanes) kda_columns<4>(d, token, size, column, state);
  for (; column + lanes <= size; column += lanes) kda_columns<1>(d, token, size, column, state);
  const hn::CappedTag<float, 1> d1;
  for (; column < size; ++column) kda_columns<1>(d1, token, size, column, state);
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(kda_step);

void kda_recurrence(Context& context, TensorView q, TensorView k, TensorView v, TensorView g, TensorView beta_logits,
                    std::span<const StateSegment> segments, MutableTensorView o) {
  const int64_t rows = beta_logits.shape[0];
  const int64_t heads = beta_logits.shape[1];
  const int64_t width = q.shape[1];
  const int64_t size = width / heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  const float* qs = q.as<float>().data();
  const float* ks = k.as<float>().data();
  const float* vs = v.as<float>().data();
  const float* gs = g.as<float>().data();
  const float* betas = beta_logits.as<float>().data();
  float* os = o.as<float>().data();
  const bool rounds = context.rounds();
  const int64_t cost = (rows + static_cast<int64_t>(segments.size())) * size * size / 2;
  context.pool->parallel_for(heads, task_grain(context, heads, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> work;
    work.resize(static_cast<size_t>(3 * size));
    float* q_unit = work.data();
    float* k_unit = q_unit + size;
    float* decay = k_unit + size;
    for (int64_t head = begin; head < end; ++head) {
      for (const StateSegment& segment : segments) {
        float* state = segment.out + head * size * size;
        if (segment.in == nullptr) {
          std::fill_n(state, size * size, 0.0F);
        } else if (segment.in != segment.out) {
          std::copy_n(segment.in + head * size * size, size * size, state);
        }
        for (int64_t t = segment.first_row; t < segment.first_row + segment.row_count; ++t) {
          const int64_t at = t * width + head * size;
          const float q_factor = 1.0F / std::sqrt(lane_dot(qs + at, qs + at, size) + kKdaNormEpsilon);
          const float k_factor = 1.0F / std::sqrt(lane_dot(ks + at, ks + at, size) + kKdaNormEpsilon);
          for (int64_t i = 0; i < size; ++i) {
            q_unit[i] = qs[at + i] * q_factor * scale;
            k_unit[i] = ks[at + i] * k_factor;
          }
          exponentials(gs + at, size, decay);
          const KdaToken token{q_unit, k_unit, decay, vs + at, sigmoid(betas[t * heads + head]), os + at};
          HWY_DYNAMIC_DISPATCH(kda_step)(token, size, state);
          if (!rounds) continue;
          for (int64_t j = 0; j < size; ++j) os[at + j] = round_bf16(os[at + j]);
        }
      }
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
