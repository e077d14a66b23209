#include <algorithm>

#include "ops/reference/reference.h"

namespace weft::ops::reference {

void gather_rows(Context& /*context*/, TensorView x, std::span<const int64_t> rows, MutableTensorView out) {
  const int64_t size = x.shape[1];
  const float* xs = x.as<float>().data();
  float* to = out.as<float>().data();
  for (const int64_t row : rows) to = std::copy_n(xs + row * size, size, to);
}

}  // namespace weft::ops::reference
