// Rows of activations as the dense kernels in use take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/context.h"
#include "ops/weight.h"

namespace weft::ops::cpu {

inline constexpr int64_t kUnit = 32;  // columns taken together: one MXFP4 group

// What a packed value is.
enum class RowForm : uint8_t {
  f32,
  bf16,  // for values that are bf16 values, on machines that multiply pairs of them directly (AVX512_BF16)
};

// The form for products with a weight of this format. `bf16_values`: every value of the rows is a bf16 value.
[[nodiscard]] RowForm row_form(WeightFormat format, bool bf16_values);

// A buffer that begins at a cache line.
class LineBuffer {
 public:
  void resize(int64_t bytes) { lines_.resize(static_cast<size_t>((bytes + kLine - 1) / kLine)); }
  [[nodiscard]] std::byte* data() { return lines_.front().bytes; }
  static constexpr int64_t kLine = 64;

 private:
  struct alignas(kLine) Line {
    std::byte bytes[kLine];
  };
  std::vector<Line> lines_;
};

// A product packs its rows once, and all its tasks read them. Keeps its memory from call to call.
class PackedRows {
 public:
  void resize(RowForm form, int64_t rows, int64_t in);  // rows >= 1, in >= 1
  // Columns [begin, begin + count) of row r; begin is a multiple of kUnit, and the end is too or is `in`. Threads may pack
  // different parts. An internal error if the form is bf16 and a value is no bf16 value.
  void pack(int64_t r, int64_t begin, int64_t count, const float* x);
  void pack_all(Context& context, const float* x);  // x [rows, in]

  [[nodiscard]] RowForm form() const { return form_; }
  [[nodiscard]] const std::byte* row(int64_t r) const { return rows_[static_cast<size_t>(r)]; }
  [[nodiscard]] const std::byte* const* rows() const { return rows_.data(); }

 private:
  RowForm form_ = RowForm::f32;
  int64_t in_ = 0;
  LineBuffer buffer_;
  std::vector<std::byte*> rows_;
};

}  // namespace weft::ops::cpu
