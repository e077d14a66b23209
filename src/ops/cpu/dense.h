// The products that dense CPU operators are made of.
//
// Dot form: the columns of a row are taken in units of 32, in an order that the instruction set likes (packed rows and decoded
// weights share it), the lanes of one sum are filled unit by unit by fused multiply-add, and one fold adds the lanes. One row
// or many, whatever the blocking and the split of outputs over threads: the bits of a result depend on its row of x, its row of
// the weight, the row form and the dispatch target alone; and not on the weight's format where the row form is the same.
#pragma once

#include <cstdint>

#include "ops/cpu/packed_rows.h"
#include "ops/weight.h"

namespace weft::ops::cpu {

// y[r][o - first] = <row o of weight, x[r]> for r in [0, rows); `rounds`: to bf16.
struct DenseProduct {
  WeightView weight;
  RowForm form = RowForm::f32;          // as row_form(weight.format, ...) says
  const std::byte* const* x = nullptr;  // [rows] of PackedRows of this form, of weight.in columns
  int64_t rows = 0;
  float* const* y = nullptr;  // [rows]
  int64_t first = 0;
  bool rounds = false;
};

// Outputs [begin, end). Not threaded.
void dense_rows(const DenseProduct& product, int64_t begin, int64_t end);

// out[i] = row i of an FP8 or affine weight in float32, weight.out rows of weight.in columns in ascending order: the values
// that the products take. Not threaded.
void widen_rows(const WeightView& weight, float* out);

// The name of the dispatch target in use, for reports ("AVX2").
[[nodiscard]] const char* dispatch_target();

}  // namespace weft::ops::cpu
