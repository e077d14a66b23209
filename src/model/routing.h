// Which experts a run took, and runs that take them from such a record.
//
// Two runs that round differently may choose different experts where the router is close to a tie, and are then two different
// sums. A run that is compared with another takes the other's experts, so that only rounding is left between them
// (docs/compare.md).
#pragma once

#include <map>
#include <span>

#include "base/units.h"
#include "tensor/tensor.h"

namespace weft {

struct RowGroup;

// The router's choice in one layer for the tokens of one sequence.
struct LayerRouting {
  Tensor experts;  // [T, k] i32, ascending in a row
  Tensor weights;  // [T, k] combining weights
  Tensor margins;  // [T] last chosen selection score minus the best not chosen
};

using Routing = std::map<LayerIndex, LayerRouting>;

// Experts and weights [rows, chosen] for a batch's rows: what `routing` holds for the layer at each row's position in its
// sequence; no margins. Throws bad_input for a layer or position that it does not hold, another number of experts per token,
// and experts that are not ascending in [0, experts).
[[nodiscard]] LayerRouting routing_of_rows(const Routing& routing, LayerIndex layer, std::span<const RowGroup> groups,
                                           int64_t experts, int64_t chosen);

}  // namespace weft
