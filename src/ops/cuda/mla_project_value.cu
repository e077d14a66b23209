#include "ops/cuda/cuda.h"
#include "ops/cuda/weight.cuh"
#include "ops/mla_weights.h"

namespace weft::ops::cuda {
namespace {

// Grid (groups of kWarps outputs, rows): a warp for an output of one head.
template <WeightFormat kFormat, bool kVector>
__global__ void __launch_bounds__(kThreads)
    project_kernel(MlaShape shape, const float* lat, WeightView kv_b, float* o, bool rounds) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t outputs = shape.heads * shape.value;
  if (output >= outputs) return;
  const int64_t row = blockIdx.y;
  const int64_t head = output / shape.value;
  const int64_t weight_row = value_row(shape, kv_b, head) + output % shape.value;
  float sum[1][1] = {};
  lane_dots<kFormat, kVector, 1, 1>(kv_b, weight_row, kv_b.out, lat + (row * shape.heads + head) * shape.latent, 0, 1, 0, 1,
                                    sum);
  const float total = warp_sum(sum[0][0]);
  if (threadIdx.x % kWarp == 0) o[row * outputs + output] = round_if(rounds, total);
}

}  // namespace

void mla_project_value(Context& context, const MlaShape& shape, TensorView lat, const WeightView& kv_b, MutableTensorView o) {
  if (lat.shape[0] == 0) return;
  const dim3 grid(blocks_for(shape.heads * shape.value, kWarps), static_cast<unsigned>(lat.shape[0]));
  with_format(kv_b.format, vector_loads(kv_b, lat.data), [&](auto format, auto vector) {
    project_kernel<format(), vector()>
        <<<grid, kThreads, 0, stream_of(context)>>>(shape, floats(lat), kv_b, floats(o), context.rounds());
  });
  launched("mla_project_value");
}

}  // namespace weft::ops::cuda
