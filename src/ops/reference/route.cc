#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/math.h"
#include "ops/reference/reference.h"

namespace weft::ops::reference {

void route(Context& /*context*/, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins) {
  const int64_t rows = logits.shape[0];
  const auto experts = static_cast<size_t>(logits.shape[1]);
  const int64_t chosen = rule.experts_per_token;
  const float* b = bias.as<float>().data();
  std::vector<float> score(experts);
  std::vector<float> selection(experts);
  std::vector<int32_t> order(experts);
  for (int64_t t = 0; t < rows; ++t) {
    const float* row = logits.as<float>().data() + t * logits.shape[1];
    for (size_t e = 0; e < experts; ++e) {
      score[e] = sigmoid(row[e]);
      selection[e] = score[e] + b[e];
      if (std::isnan(selection[e])) {
        fail(ErrorKind::bad_checkpoint, "route", "row {}, expert {}: wanted a number, found logit {} and bias {}", t, e, row[e],
             b[e]);
      }
    }
    std::iota(order.begin(), order.end(), 0);
    const auto better = [&](int32_t i, int32_t j) {
      const float a = selection[static_cast<size_t>(i)];
      const float c = selection[static_cast<size_t>(j)];
      return a != c ? a > c : i < j;
    };
    // One more than is chosen, for the margin.
    const int64_t sorted = std::min<int64_t>(chosen + 1, logits.shape[1]);
    std::partial_sort(order.begin(), order.begin() + sorted, order.end(), better);
    if (!margins.empty()) {
      const auto selected = [&](int64_t i) { return selection[static_cast<size_t>(order[static_cast<size_t>(i)])]; };
      margins[static_cast<size_t>(t)] =
          sorted > chosen ? selected(chosen - 1) - selected(chosen) : std::numeric_limits<float>::infinity();
    }
    std::sort(order.begin(), order.begin() + chosen);

    int32_t* id = ids.as<int32_t>().data() + t * chosen;
    float* weight = weights.as<float>().data() + t * chosen;
    float sum = 0.0F;
    for (int64_t i = 0; i < chosen; ++i) {
      id[i] = order[static_cast<size_t>(i)];
      weight[i] = score[static_cast<size_t>(id[i])];
      sum += weight[i];
    }
    for (int64_t i = 0; i < chosen; ++i) {
      if (rule.renormalize && chosen > 1) weight[i] /= sum + 1e-20F;
      weight[i] *= rule.scale;
    }
  }
}

}  // namespace weft::ops::reference
