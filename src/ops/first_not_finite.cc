#include "ops/first_not_finite.h"

#include <limits>

#include "ops/check.h"
#include "ops/cuda/cuda.h"
#include "ops/reference/first_not_finite.h"

namespace weft::ops {
namespace {

constexpr int64_t kPlaces = int64_t{1} << (64 - kPlaceShift);
constexpr int64_t kElements = int64_t{1} << (kPlaceShift - kElementShift);

}  // namespace

void first_not_finite(Context& context, TensorView x, int64_t place, std::span<uint64_t> first) {
  check_context(context, "first_not_finite");
  const int64_t rows = extent_of("first_not_finite", "x", x, 2, 0);
  const int64_t size = extent_of("first_not_finite", "x", x, 2, 1);
  check_tensor("first_not_finite", "x", x, {rows, size});
  if (place < 0 || place >= kPlaces || x.elements() > kElements || first.size() != 1) {
    fail(ErrorKind::internal, "first_not_finite",
         "wanted a place in [0, {}), at most {} elements and one result, found place {}, {} elements and {} results", kPlaces,
         kElements, place, x.elements(), first.size());
  }
  const auto run = context.on_gpu() ? cuda::first_not_finite : reference::first_not_finite;
  run(context, x, place, first);
}

std::optional<NotFinite> read_not_finite(uint64_t first) {
  if (first == kAllFinite) return {};
  NotFinite found;
  found.place = static_cast<int64_t>(first >> kPlaceShift);
  found.element = static_cast<int64_t>(first >> kElementShift) & (kElements - 1);
  const uint64_t kind = first & ((uint64_t{1} << kElementShift) - 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  found.value = kind == kIsNan ? std::numeric_limits<float>::quiet_NaN() : kind == kIsInfinity ? kInfinity : -kInfinity;
  return found;
}

}  // namespace weft::ops
