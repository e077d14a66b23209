#include <algorithm>
#include <vector>

#include "base/fault.h"
#include "ops/math.h"
#include "ops/reference/reference.h"
#include "ops/split.h"

namespace weft::ops::reference {

void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y) {
  const int64_t channels = taps.shape[0];
  const int64_t kernel = taps.shape[1];
  const int64_t history = kernel - 1;
  const float* xs = x.as<float>().data();
  const float* tap = taps.as<float>().data();
  float* ys = y.as<float>().data();
  const bool rounds = context.rounds();
  context.pool->parallel_for(channels, task_grain(context, channels, x.shape[0] * (kernel + 16)),
                             [&](int64_t begin, int64_t end) {
                               // Per channel: the history, then the segment's inputs; a window of Kc values slides over them.
                               thread_local std::vector<float> line;
                               for (int64_t c = begin; c < end; ++c) {
                                 for (const StateSegment& segment : segments) {
                                   line.resize(static_cast<size_t>(history + segment.row_count));
                                   for (int64_t j = 0; j < history; ++j) {
                                     line[static_cast<size_t>(j)] = segment.in == nullptr ? 0.0F : segment.in[j * channels + c];
                                   }
                                   for (int64_t t = 0; t < segment.row_count; ++t) {
                                     line[static_cast<size_t>(history + t)] = xs[(segment.first_row + t) * channels + c];
                                   }
                                   for (int64_t t = 0; t < segment.row_count; ++t) {
                                     float sum = 0.0F;
                                     for (int64_t j = 0; j < kernel; ++j)
                                       sum += tap[c * kernel + j] * line[static_cast<size_t>(t + j)];
                                     const float activated = on(Fault::no_silu_after_convolution) ? sum : silu(sum);
                                     ys[(segment.first_row + t) * channels + c] = round_if(rounds, activated);
                                   }
                                   for (int64_t j = 0; j < history; ++j) {
                                     segment.out[j * channels + c] = line[static_cast<size_t>(segment.row_count + j)];
                                   }
                                 }
                               }
                             });
}

}  // namespace weft::ops::reference
