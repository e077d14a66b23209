#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/targets.h"
#include "ops/math.h"
#include "ops/split.h"
#include "ops/sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/delta_rule.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef WEFT_OPS_CPU_DELTA_ONCE
#define WEFT_OPS_CPU_DELTA_ONCE
namespace weft::ops::cpu {

inline constexpr int64_t kDeltaCopyTokens = 4;     // from here on a copy of the state's slice pays
inline constexpr int64_t kDeltaMaxCopy = 128;      // dk
inline constexpr float kDeltaNormEpsilon = 1e-6F;  // added to the sum of squares, not to the mean (K3 spec 8.1)

// Consecutive tokens of one value head. `factors` holds four vectors of dk values for each token: k exp(g), exp(g), k, q, where
// q and k are normalised and q is scaled.
struct DeltaTokens {
  int64_t count = 0;
  int64_t size = 0;                // dk
  int64_t columns = 0;             // dv
  const float* factors = nullptr;  // [count, 4, dk]
  const float* beta = nullptr;     // [count], after the sigmoid
  const float* v = nullptr;        // [count] rows of dv values, `stride` apart
  float* o = nullptr;              // likewise
  int64_t stride = 0;
};

}  // namespace weft::ops::cpu
#endif  // WEFT_OPS_CPU_DELTA_ONCE

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Value columns [column, column + kColumns vectors) over all tokens: their slice of the state stays in L1. Columns are
// independent of all others, so that a result does not depend on how columns or tokens are grouped. `state` points to the first
// column.
template <int kColumns, class D>
HWY_NOINLINE void delta_columns(D d, const DeltaTokens& tokens, int64_t column, float* HWY_RESTRICT state, int64_t stride) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::MaxLanes(D()));
  const int64_t size = tokens.size;
  for (int64_t t = 0; t < tokens.count; ++t) {
    const float* HWY_RESTRICT decayed_k = tokens.factors + t * 4 * size;
    const float* HWY_RESTRICT decay = decayed_k + size;
    const float* HWY_RESTRICT k = decay + size;
    const float* HWY_RESTRICT q = k + size;
    V u[kColumns];
    V odd[kColumns];  // a second chain of sums, for odd i
    for (int c = 0; c < kColumns; ++c) u[c] = odd[c] = hn::Zero(d);
    int64_t i = 0;
    for (; i + 2 <= size; i += 2) {
      const V first = hn::Set(d, decayed_k[i]);
      const V second = hn::Set(d, decayed_k[i + 1]);
      const float* row = state + i * stride;
      for (int c = 0; c < kColumns; ++c) u[c] = hn::MulAdd(first, hn::LoadU(d, row + c * lanes), u[c]);
      for (int c = 0; c < kColumns; ++c) odd[c] = hn::MulAdd(second, hn::LoadU(d, row + stride + c * lanes), odd[c]);
    }
    if (i < size) {
      const V last = hn::Set(d, decayed_k[i]);
      for (int c = 0; c < kColumns; ++c) u[c] = hn::MulAdd(last, hn::LoadU(d, state + i * stride + c * lanes), u[c]);
    }
    const V beta = hn::Set(d, tokens.beta[t]);
    const float* v = tokens.v + t * tokens.stride + column;
    V sum[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      u[c] = hn::Mul(beta, hn::Sub(hn::LoadU(d, v + c * lanes), hn::Add(u[c], odd[c])));
      sum[c] = hn::Zero(d);
    }
    for (i = 0; i < size; ++i) {
      const V by_decay = hn::Set(d, decay[i]);
      const V by_k = hn::Set(d, k[i]);
      const V by_q = hn::Set(d, q[i]);
      float* row = state + i * stride;
      for (int c = 0; c < kColumns; ++c) {
        const V s = hn::MulAdd(by_k, u[c], hn::Mul(by_decay, hn::LoadU(d, row + c * lanes)));
        hn::StoreU(s, d, row + c * lanes);
        sum[c] = hn::MulAdd(by_q, s, sum[c]);
      }
    }
    float* o = tokens.o + t * tokens.stride + column;
    for (int c = 0; c < kColumns; ++c) hn::StoreU(sum[c], d, o + c * lanes);
  }
}

// The same over several tokens on a copy of the columns' slice of the state, which fits into L1 (16 KiB for dk = 128) where the
// slice itself, with its stride of dv values, would fall into a part of the sets only.
template <int kColumns, class D>
HWY_INLINE void delta_slice(D d, const DeltaTokens& tokens, int64_t column, float* HWY_RESTRICT state) {
  const int64_t size = tokens.size;
  constexpr auto kWidth = static_cast<int64_t>(kColumns * hn::MaxLanes(D()));
  if (tokens.count < kDeltaCopyTokens || size > kDeltaMaxCopy) {
    return delta_columns<kColumns>(d, tokens, column, state + column, tokens.columns);
  }
  alignas(64) float slice[kDeltaMaxCopy * kWidth];
  for (int64_t i = 0; i < size; ++i) std::copy_n(state + i * tokens.columns + column, kWidth, slice + i * kWidth);
  delta_columns<kColumns>(d, tokens, column, slice, kWidth);
  for (int64_t i = 0; i < size; ++i) std::copy_n(slice + i * kWidth, kWidth, state + i * tokens.columns + column);
}

void delta_head(const DeltaTokens& tokens, float* state) {
  const hn::CappedTag<float, 16> d;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(hn::CappedTag<float, 16>()));
  constexpr int kColumns = kLanes >= 8 ? 32 / kLanes : 4;
  const int64_t size = tokens.columns;
  int64_t column = 0;
  for (; column + kColumns * kLanes <= size; column += kColumns * kLanes) delta_slice<kColumns>(d, tokens, column, state);
  for (; column + kLanes <= size; column += kLanes) delta_slice<1>(d, tokens, column, state);
  const hn::CappedTag<float, 1> d1;
  for (; column < size; ++column) delta_columns<1>(d1, tokens, column, state + column, size);
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(delta_head);

namespace {

constexpr int64_t kDeltaTokens = 32;  // tokens whose factors are made together: 64 KiB of L2 for dk = 128

// The operands of one call.
struct DeltaCall {
  DeltaShape shape;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* g = nullptr;
  const float* beta_logits = nullptr;
  float* o = nullptr;
  bool rounds = false;
};

// Factors of token t of a value head (DeltaTokens).
void make_factors(const DeltaCall& call, int64_t t, int64_t head, float* factors) {
  const DeltaShape& shape = call.shape;
  const int64_t size = shape.key_size;
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  const float* q = call.q + (t * shape.key_heads + key_head) * size;
  const float* k = call.k + (t * shape.key_heads + key_head) * size;
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  const float q_factor = 1.0F / std::sqrt(lane_dot(q, q, size) + kDeltaNormEpsilon);
  const float k_factor = 1.0F / std::sqrt(lane_dot(k, k, size) + kDeltaNormEpsilon);
  float* decayed_k = factors;
  float* decay = decayed_k + size;
  float* k_unit = decay + size;
  float* q_unit = k_unit + size;
  for (int64_t i = 0; i < size; ++i) {
    q_unit[i] = q[i] * q_factor * scale;
    k_unit[i] = k[i] * k_factor;
  }
  if (shape.decay_per_channel) {
    exponentials(call.g + (t * shape.value_heads + head) * size, size, decay);
  } else {
    exponentials(call.g + t * shape.value_heads + head, 1, decay);
    std::fill_n(decay + 1, size - 1, decay[0]);
  }
  for (int64_t i = 0; i < size; ++i) decayed_k[i] = k_unit[i] * decay[i];
}

// One value head over the tokens of a segment.
void run_segment(const DeltaCall& call, const StateSegment& segment, int64_t head) {
  thread_local std::vector<float> factors;
  const int64_t heads = call.shape.value_heads;
  const int64_t size = call.shape.key_size;
  const int64_t columns = call.shape.value_size;
  const int64_t state_size = size * columns;
  factors.resize(static_cast<size_t>(kDeltaTokens * 4 * size));
  float* state = segment.out + head * state_size;
  if (segment.in == nullptr) {
    std::fill_n(state, state_size, 0.0F);
  } else if (segment.in != segment.out) {
    std::copy_n(segment.in + head * state_size, state_size, state);
  }
  const int64_t end = segment.first_row + segment.row_count;
  for (int64_t first = segment.first_row; first < end; first += kDeltaTokens) {
    const int64_t at = (first * heads + head) * columns;
    std::array<float, kDeltaTokens> beta{};
    const DeltaTokens tokens{std::min(kDeltaTokens, end - first),
                             size,
                             columns,
                             factors.data(),
                             beta.data(),
                             call.v + at,
                             call.o + at,
                             heads * columns};
    for (int64_t t = 0; t < tokens.count; ++t) {
      make_factors(call, first + t, head, factors.data() + t * 4 * size);
      beta[static_cast<size_t>(t)] = sigmoid(call.beta_logits[(first + t) * heads + head]);
    }
    HWY_DYNAMIC_DISPATCH(delta_head)(tokens, state);
    if (!call.rounds) continue;
    for (int64_t t = 0; t < tokens.count; ++t) {
      float* o = tokens.o + t * tokens.stride;
      for (int64_t j = 0; j < columns; ++j) o[j] = round_bf16(o[j]);
    }
  }
}

}  // namespace

void delta_rule(Context& context, const DeltaShape& shape, TensorView q, TensorView k, TensorView v, TensorView g,
                TensorView beta_logits, std::span<const StateSegment> segments, MutableTensorView o) {
  const DeltaCall call{shape,
                       q.as<float>().data(),
                       k.as<float>().data(),
                       v.as<float>().data(),
                       g.as<float>().data(),
                       beta_logits.as<float>().data(),
                       o.as<float>().data(),
                       context.rounds()};
  const int64_t heads = shape.value_heads;
  const int64_t steps = beta_logits.shape[0] + static_cast<int64_t>(segments.size());
  const int64_t cost = steps * shape.key_size * shape.value_size / 2;
  context.pool->parallel_for(heads, task_grain(context, heads, cost), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      for (const StateSegment& segment : segments) run_segment(call, segment, head);
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
