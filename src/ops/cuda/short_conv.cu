#include "ops/cuda/cuda.h"
#include "ops/cuda/segments.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// Input `t` of a segment's channel; negative: of the history.
__device__ float input_at(const StateSegment& segment, const float* x, int64_t channels, int64_t history, int64_t c,
                          int64_t t) {
  if (t >= 0) return x[(segment.first_row + t) * channels + c];
  return segment.in == nullptr ? 0.0F : segment.in[(history + t) * channels + c];
}

// Grid (blocks of channels, segments); a thread for a channel.
__global__ void __launch_bounds__(kThreads)
    short_conv_kernel(const float* x, const float* taps, int64_t channels, int64_t kernel, const StateSegment* segments,
                      int64_t segment_count, float* y, bool rounds) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= channels) return;
  const int64_t history = kernel - 1;
  for_each_chained(segments, segment_count, blockIdx.y, [&](const StateSegment& segment) {
    for (int64_t t = 0; t < segment.row_count; ++t) {
      float sum = 0.0F;
      for (int64_t j = 0; j < kernel; ++j) {
        sum += taps[c * kernel + j] * input_at(segment, x, channels, history, c, t - history + j);
      }
      y[(segment.first_row + t) * channels + c] = round_if(rounds, sum * sigmoid(sum));
    }
    // The new history; where `out` is `in`, older entries are overwritten only after they have been read.
    for (int64_t j = 0; j < history; ++j) {
      segment.out[j * channels + c] = input_at(segment, x, channels, history, c, segment.row_count - history + j);
    }
  });
}

}  // namespace

void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y) {
  const int64_t channels = taps.shape[0];
  if (segments.empty() || channels == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const StateSegment> there = device_table(context, segments);
  const dim3 grid(blocks_for(channels, kThreads), static_cast<unsigned>(segments.size()));
  short_conv_kernel<<<grid, kThreads, 0, stream_of(context)>>>(floats(x), floats(taps), channels, taps.shape[1], there.data(),
                                                               static_cast<int64_t>(there.size()), floats(y), context.rounds());
  launched("short_conv");
}

}  // namespace weft::ops::cuda
