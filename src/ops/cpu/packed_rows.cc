#include "ops/cpu/packed_rows.h"

#include "base/error.h"
#include "ops/cpu/dense_kernels.h"
#include "ops/split.h"

namespace weft::ops::cpu {

RowForm row_form(WeightFormat format, bool bf16_values) {
  const bool narrow = format == WeightFormat::bf16 || format == WeightFormat::mxfp4;  // its values are bf16 values
  return bf16_values && narrow && bf16_products() ? RowForm::bf16 : RowForm::f32;
}

void PackedRows::resize(RowForm form, int64_t rows, int64_t in) {
  form_ = form;
  in_ = in;
  const int64_t bytes = (in + kUnit - 1) / kUnit * kUnit * (form == RowForm::f32 ? 4 : 2);
  // An odd number of lines: equal columns of neighbouring rows fall into different sets of the cache.
  const int64_t stride = ((bytes + LineBuffer::kLine - 1) / LineBuffer::kLine | 1) * LineBuffer::kLine;
  buffer_.resize(rows * stride);
  rows_.resize(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) rows_[static_cast<size_t>(r)] = buffer_.data() + r * stride;
}

void PackedRows::pack(int64_t r, int64_t begin, int64_t count, const float* x) {
  std::byte* row = rows_[static_cast<size_t>(r)];
  if (form_ == RowForm::f32) {
    pack_f32(x, count, reinterpret_cast<float*>(row) + begin);
  } else if (!pack_bf16(x, count, reinterpret_cast<uint16_t*>(row) + begin)) {
    fail(ErrorKind::internal, "dense product", "wanted activations that are bf16 values in profile bf16, found another value");
  }
}

void PackedRows::pack_all(Context& context, const float* x) {
  const auto rows = static_cast<int64_t>(rows_.size());
  context.pool->parallel_for(rows, task_grain(context, rows, in_ / 8), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) pack(r, 0, in_, x + r * in_);
  });
}

}  // namespace weft::ops::cpu
