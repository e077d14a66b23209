// The choice of the router, shared by its back ends.
#pragma once

#include <span>

#include "ops/ops.h"

namespace weft::ops {

// One row: selection by score + bias (ties: smaller index), weights from the scores (K3 spec 3.7). logits, bias, scores =
// sigmoid(logits) [E]; ids (ascending), weights [k]; margin may be null. A selection score that is not a number is an error
// naming `row` and the expert.
void choose_experts(const RouterRule& rule, int64_t row, std::span<const float> logits, std::span<const float> bias,
                    std::span<const float> scores, int32_t* ids, float* weights, float* margin);

}  // namespace weft::ops
