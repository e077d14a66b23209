// The choice of the router, shared by its back ends.
#pragma once

#include <span>

#include "ops/ops.h"

namespace weft::ops {

// One row (RouterRule): `scores` [E] is the sigmoid or the softmax of the logits [E]; bias [E], not read for softmax; ids
// (ascending), weights [k]; margin may be null. A score that is not a number is an error naming `row` and the expert; so is
// an infinite logit of a softmax.
void choose_experts(const RouterRule& rule, int64_t row, std::span<const float> logits, std::span<const float> bias,
                    std::span<const float> scores, int32_t* ids, float* weights, float* margin);

}  // namespace weft::ops
