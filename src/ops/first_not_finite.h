// The first value of a step that is not finite, as one ordered number that a step gathers over many tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops/context.h"
#include "tensor/tensor.h"

namespace weft::ops {

struct NotFinite {
  int64_t place = 0;    // as the call named it
  int64_t element = 0;  // of the tensor, row by row
  float value = 0.0F;   // NaN or an infinity
};

// first[0] becomes the lesser of itself and the code of x's first element that is not finite; places order before elements.
// x [T, D]; place in [0, 2^20). Begin with kAllFinite. On a GPU `first` lies in its memory.
void first_not_finite(Context& context, TensorView x, int64_t place, std::span<uint64_t> first);

inline constexpr uint64_t kAllFinite = ~uint64_t{0};
// Nothing for kAllFinite.
[[nodiscard]] std::optional<NotFinite> read_not_finite(uint64_t first);

// The code: place, element, kind of value (below), from the top.
inline constexpr int kPlaceShift = 44;
inline constexpr int kElementShift = 2;
inline constexpr uint64_t kIsNan = 0;
inline constexpr uint64_t kIsInfinity = 1;
inline constexpr uint64_t kIsMinusInfinity = 2;

}  // namespace weft::ops
