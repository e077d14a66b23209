#include "ops/cuda/cuda.h"
#include "ops/cuda/tables.h"
#include "ops/cuda/weight.cuh"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// A block for a row.
__global__ void __launch_bounds__(kThreads) embed_kernel(const int32_t* ids, WeightView table, bool rounds, float* out) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < table.in; c += kThreads)
    out[row * table.in + c] = round_if(rounds, weight_at(table, ids[row], c));
}

}  // namespace

void embed(Context& context, std::span<const int32_t> ids, const WeightView& table, MutableTensorView out) {
  if (ids.empty()) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const int32_t> there = device_table(context, ids);
  embed_kernel<<<static_cast<unsigned>(ids.size()), kThreads, 0, stream_of(context)>>>(there.data(), table, context.rounds(),
                                                                                       floats(out));
  launched("embed");
}

}  // namespace weft::ops::cuda
