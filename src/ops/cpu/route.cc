#include <algorithm>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/guarded_rows.h"
#include "ops/route_choice.h"
#include "ops/split.h"

namespace weft::ops::cpu {

void route(Context& context, const RouterRule& rule, TensorView logits, TensorView bias, MutableTensorView ids,
           MutableTensorView weights, std::span<float> margins) {
  const int64_t rows = logits.shape[0];
  const auto experts = static_cast<size_t>(logits.shape[1]);
  const int64_t chosen = rule.experts_per_token;
  const int64_t grain = task_grain(context, rows, 32 * logits.shape[1]);
  for_each_row(context, rows, grain, [&](int64_t t) {
    thread_local std::vector<float> scores;
    scores.resize(experts);
    const std::span<const float> row = logits.as<float>().subspan(static_cast<size_t>(t) * experts, experts);
    if (rule.score == RouterRule::Score::sigmoid) {
      sigmoids(row.data(), logits.shape[1], scores.data());
    } else {
      std::ranges::copy(row, scores.begin());
      const float sum = exponentiate(scores, 1.0F).sum;
      for (float& score : scores) score /= sum;
    }
    choose_experts(rule, t, row, bias.as<float>(), scores, ids.as<int32_t>().data() + t * chosen,
                   weights.as<float>().data() + t * chosen, margins.empty() ? nullptr : &margins[static_cast<size_t>(t)]);
  });
}

}  // namespace weft::ops::cpu
