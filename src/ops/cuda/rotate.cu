#include "ops/cuda/cuda.h"
#include "ops/cuda/elementwise.cuh"

namespace weft::ops::cuda {

// A thread for a pair of channels or for a channel that is copied: y may be x.
void rotate(Context& context, const HeadShape& shape, int64_t rotary, TensorView x, TensorView table, MutableTensorView y) {
  const float* xs = floats(x);
  const float* tables = floats(table);
  float* ys = floats(y);
  const bool rounds = context.rounds();
  const int64_t half = rotary / 2;
  const int64_t size = shape.size;
  const int64_t heads = shape.heads;
  const int64_t units = size - half;  // of a head
  for_each_element(
      context, x.shape[0] * heads * units,
      [=] __device__(int64_t index) {
        const int64_t head = index / units;  // of all rows
        const int64_t i = index % units;
        const float* from = xs + head * size;
        float* to = ys + head * size;
        if (i >= half) {
          to[half + i] = from[half + i];
          return;
        }
        const float cosine = tables[head / heads * rotary + i];
        const float sine = tables[head / heads * rotary + half + i];
        const float a = from[i];
        const float b = from[half + i];
        to[i] = round_if(rounds, a * cosine - b * sine);
        to[half + i] = round_if(rounds, b * cosine + a * sine);
      },
      "rotate");
}

}  // namespace weft::ops::cuda
