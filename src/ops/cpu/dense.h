// The products that all dense CPU operators are made of.
//
// Dot form with a virtual width of 16 lanes: column c of a sum belongs to lane c mod 16, lanes are filled in ascending order of
// c by fused multiply-add, and fold16 adds the lanes. One row or many, whatever the blocking and the split of outputs over
// threads: the bits of y[r][o] depend on x[r], row o of the weight and the dispatch target alone.
#pragma once

#include <cstdint>

#include "ops/weight.h"

namespace weft::ops::cpu {

// y[r][o] = <row o of weight, x[r]> for o in [begin, end), r in [0, rows); `rounds`: to bf16. x[r] has weight.in values.
// Not threaded.
void dense_rows(const WeightView& weight, int64_t begin, int64_t end, const float* const* x, int64_t rows, float* const* y,
                bool rounds);

// y[r][c] = sum_i a[r][i] matrix[i * stride + c] for c in [0, size), r in [0, rows): i ascending by fused multiply-add. Not
// threaded.
void transposed_rows(const float* matrix, int64_t stride, int64_t count, int64_t size, const float* const* a, int64_t rows,
                     float* const* y);

// The name of the dispatch target in use, for reports ("AVX2").
[[nodiscard]] const char* dispatch_target();

}  // namespace weft::ops::cpu
