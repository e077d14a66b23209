#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "ops/cpu/cpu.h"
#include "ops/cpu/targets.h"
#include "ops/split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/short_conv.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

// y[c] = silu(sum_j taps[j][c] rows[j][c]), j ascending, for channels [0, count). taps: [kernel, stride].
void convolve(std::span<const float* const> rows, const float* taps, int64_t stride, int64_t count, bool rounds, float* y) {
  for_elements(count, [&](auto d, int64_t c) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (size_t j = 0; j < rows.size(); ++j) {
      sum = hn::MulAdd(hn::LoadU(d, taps + static_cast<int64_t>(j) * stride + c), hn::LoadU(d, rows[j] + c), sum);
    }
    hn::StoreU(round_if_of(d, rounds, hn::Mul(sum, sigmoid_of(d, sum))), d, y + c);
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(convolve);

namespace {

constexpr int64_t kBlock = 256;  // channels of one task: their taps and a window of rows stay in L1

// Channels [first, first + count) of one segment. taps: [kernel, kBlock]; zeros: kBlock of them.
void convolve_segment(Context& context, const StateSegment& segment, const float* x, int64_t channels, int64_t first,
                      int64_t count, std::span<const float> taps, const float* zeros, float* y) {
  const auto kernel = static_cast<int64_t>(taps.size()) / kBlock;
  const int64_t history = kernel - 1;
  // Row i of the history followed by the segment's inputs.
  const auto row = [&](int64_t i) {
    if (i >= history) return x + (segment.first_row + i - history) * channels + first;
    return segment.in == nullptr ? zeros : segment.in + i * channels + first;
  };
  thread_local std::vector<const float*> window;
  window.resize(static_cast<size_t>(kernel));
  for (int64_t t = 0; t < segment.row_count; ++t) {
    for (int64_t j = 0; j < kernel; ++j) window[static_cast<size_t>(j)] = row(t + j);
    HWY_DYNAMIC_DISPATCH(convolve)
    (window, taps.data(), kBlock, count, context.rounds(), y + (segment.first_row + t) * channels + first);
  }
  // In place a row moves to an earlier one, which was read before.
  for (int64_t j = 0; j < history; ++j)
    std::memmove(segment.out + j * channels + first, row(segment.row_count + j), static_cast<size_t>(count) * sizeof(float));
}

}  // namespace

void short_conv(Context& context, TensorView x, TensorView taps, std::span<const StateSegment> segments, MutableTensorView y) {
  const int64_t channels = taps.shape[0];
  const int64_t kernel = taps.shape[1];
  const float* xs = x.as<float>().data();
  const float* tap = taps.as<float>().data();
  float* ys = y.as<float>().data();
  const int64_t blocks = (channels + kBlock - 1) / kBlock;
  const int64_t cost = kBlock * (x.shape[0] + 1) * (kernel + 8) / 4;
  context.pool->parallel_for(blocks, task_grain(context, blocks, cost), [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> block_taps;
    thread_local std::vector<float> zeros(kBlock);
    block_taps.resize(static_cast<size_t>(kernel * kBlock));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      const int64_t count = std::min(kBlock, channels - first);
      for (int64_t c = 0; c < count; ++c) {
        for (int64_t j = 0; j < kernel; ++j) block_taps[static_cast<size_t>(j * kBlock + c)] = tap[(first + c) * kernel + j];
      }
      for (const StateSegment& segment : segments) {
        convolve_segment(context, segment, xs, channels, first, count, block_taps, zeros.data(), ys);
      }
    }
  });
}

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
