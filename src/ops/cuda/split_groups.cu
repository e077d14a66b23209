#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {
namespace {

// The slabs of a group, in a form that a kernel takes by value.
struct Slabs {
  int64_t first[kMaxSplitParts + 1] = {};  // column of the group; behind the last slab, the group's size
  float* part[kMaxSplitParts] = {};
};

}  // namespace

void split_groups(Context& context, TensorView x, std::span<const int64_t> widths, std::span<const MutableTensorView> parts) {
  Slabs slabs;
  for (size_t i = 0; i < widths.size(); ++i) {
    slabs.first[i + 1] = slabs.first[i] + widths[i];
    slabs.part[i] = floats(parts[i]);
  }
  const int64_t size = slabs.first[widths.size()];
  const float* xs = floats(x);
  for_each_element(
      context, x.elements(),
      [=] __device__(int64_t i) {
        const int64_t group = i / size;
        const int64_t column = i % size;
        int slab = 0;
        while (column >= slabs.first[slab + 1]) ++slab;
        const int64_t width = slabs.first[slab + 1] - slabs.first[slab];
        slabs.part[slab][group * width + column - slabs.first[slab]] = xs[i];
      },
      "split_groups");
}

}  // namespace weft::ops::cuda
