// Products of many rows with bfloat16 weights on the tensor cores, by cuBLASLt.
#pragma once

#include "ops/ops.h"

namespace weft::ops::cuda {

// Whether gemm() takes the product: profile bf16 (its activations are bfloat16 values), rows enough to fill tiles, whole
// vectors.
[[nodiscard]] bool gemm_fits(const Context& context, const TensorView& x, const WeightView& weight);

// y = x W^T with sums in float32, which are not rounded. The order of a sum may depend on the number of rows.
void gemm(Context& context, TensorView x, const WeightView& weight, MutableTensorView y);

}  // namespace weft::ops::cuda
