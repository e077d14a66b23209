#include "ops/route_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/fault.h"

namespace weft::ops {

void choose_experts(const RouterRule& rule, int64_t row, std::span<const float> logits, std::span<const float> bias,
                    std::span<const float> scores, int32_t* ids, float* weights, float* margin) {
  const size_t experts = scores.size();
  const int64_t chosen = rule.experts_per_token;
  const bool softmax = rule.score == RouterRule::Score::softmax;
  thread_local std::vector<float> selection;
  thread_local std::vector<int32_t> order;
  selection.resize(experts);
  order.resize(experts);
  for (size_t e = 0; e < experts; ++e) {
    const float unbiased = softmax ? logits[e] : scores[e];
    selection[e] = softmax || on(Fault::router_bias_ignored) ? unbiased : unbiased + bias[e];
    if (std::isnan(selection[e]) || (softmax && logits[e] == std::numeric_limits<float>::infinity())) {
      fail(ErrorKind::bad_checkpoint, "route", "row {}, expert {}: wanted a number, found logit {} and bias {}", row, e,
           logits[e], softmax ? 0.0F : bias[e]);
    }
  }
  std::iota(order.begin(), order.end(), 0);
  const auto selected = [](int32_t expert) { return selection[static_cast<size_t>(expert)]; };
  const auto better = [&](int32_t i, int32_t j) {
    const float a = selected(i);
    const float b = selected(j);
    return a != b ? a > b : i < j;
  };
  // One more than is chosen, for the margin.
  const int64_t sorted = std::min<int64_t>(chosen + 1, static_cast<int64_t>(experts));
  std::partial_sort(order.begin(), order.begin() + sorted, order.end(), better);
  if (margin != nullptr) {
    *margin = sorted > chosen ? selected(order[static_cast<size_t>(chosen - 1)]) - selected(order[static_cast<size_t>(chosen)])
                              : std::numeric_limits<float>::infinity();
  }
  std::sort(order.begin(), order.begin() + chosen);

  float sum = 0.0F;
  for (int64_t i = 0; i < chosen; ++i) {
    ids[i] = order[static_cast<size_t>(i)];
    weights[i] = on(Fault::weights_from_biased_scores) ? selected(ids[i]) : scores[static_cast<size_t>(ids[i])];
    sum += weights[i];
  }
  for (int64_t i = 0; i < chosen; ++i) {
    if (rule.renormalize && softmax) weights[i] /= sum;  // at least 1/E
    if (rule.renormalize && !softmax && chosen > 1) weights[i] /= sum + 1e-20F;
    weights[i] *= rule.scale;
  }
}

}  // namespace weft::ops
