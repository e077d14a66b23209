// The product with a transposed matrix that MLA is made of.
#pragma once

#include <cstdint>

#include "ops/weight.h"

namespace weft::ops::cpu {

// y[r][c] += sum_i a[r][i] matrix[i][c] for c in [0, size), r in [0, rows). matrix: f32 or bf16, [out, in], of which the first
// `size` columns count. i ascending by fused multiply-add from zero, then one addition: the bits of y[r][c] do not depend on
// the other rows and columns. Not threaded.
void add_transposed_rows(const WeightView& matrix, int64_t size, const float* const* a, int64_t rows, float* const* y);

}  // namespace weft::ops::cpu
