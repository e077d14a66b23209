#include "tensor/shape.h"

namespace weft {

std::optional<int64_t> Shape::checked_elements() const {
  int64_t product = 1;
  for (const int64_t extent : extents()) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return product;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.extents(), ", ")); }

}  // namespace weft
