#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// A block for a row of the output.
__global__ void __launch_bounds__(kThreads) gather_kernel(const float* x, const int64_t* rows, int64_t size, float* out) {
  const float* from = x + rows[blockIdx.x] * size;
  float* to = out + static_cast<int64_t>(blockIdx.x) * size;
  for (int64_t c = threadIdx.x; c < size; c += kThreads) to[c] = from[c];
}

}  // namespace

void gather_rows(Context& context, TensorView x, std::span<const int64_t> rows, MutableTensorView out) {
  if (rows.empty()) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const int64_t> there = device_table(context, rows);
  gather_kernel<<<static_cast<unsigned>(rows.size()), kThreads, 0, stream_of(context)>>>(floats(x), there.data(), x.shape[1],
                                                                                         floats(out));
  launched("gather_rows");
}

}  // namespace weft::ops::cuda
