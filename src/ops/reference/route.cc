#include <algorithm>
#include <vector>

#include "ops/attention_blocks.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/route_choice.h"

namespace weft::ops::reference {

void route(Context& /*context*/, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins) {
  const auto experts = static_cast<size_t>(logits.shape[1]);
  const int64_t chosen = rule.experts_per_token;
  std::vector<float> scores(experts);
  for (int64_t t = 0; t < logits.shape[0]; ++t) {
    const std::span<const float> row = logits.as<float>().subspan(static_cast<size_t>(t) * experts, experts);
    if (rule.score == RouterRule::Score::sigmoid) {
      for (size_t e = 0; e < experts; ++e) scores[e] = sigmoid(row[e]);
    } else {
      std::ranges::copy(row, scores.begin());
      const float sum = exponentiate(scores).sum;
      for (float& score : scores) score /= sum;
    }
    choose_experts(rule, t, row, bias.as<float>(), scores, ids.as<int32_t>().data() + t * chosen,
                   weights.as<float>().data() + t * chosen, margins.empty() ? nullptr : &margins[static_cast<size_t>(t)]);
  }
}

}  // namespace weft::ops::reference
