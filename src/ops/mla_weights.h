// The two forms of the latent projections of MLA: kv_b [H*(dn+dv), rc], or keys and values apart. Their shapes tell which.
#pragma once

#include "ops/ops.h"

namespace weft::ops {

// WK^T of all heads, [H*rc, dn]. No shape is both: with rc = dn the other has dv more rows a head.
[[nodiscard]] constexpr bool alone_keys(const MlaShape& shape, const WeightView& weight) {
  return weight.out == shape.heads * shape.latent && weight.in == shape.nope;
}
// WV of all heads, [H*dv, rc].
[[nodiscard]] constexpr bool alone_values(const MlaShape& shape, const WeightView& weight) {
  return weight.out == shape.heads * shape.value;
}
// The first row of WV of a head.
[[nodiscard]] constexpr int64_t value_row(const MlaShape& shape, const WeightView& weight, int64_t head) {
  return alone_values(shape, weight) ? head * shape.value : head * (shape.nope + shape.value) + shape.nope;
}

}  // namespace weft::ops
