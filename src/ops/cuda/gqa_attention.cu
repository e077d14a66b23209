#include "ops/attention_parts.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/paged.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// The positions of a row are cut into at most kParts parts, whose ends depend on the row's position only, so that the row's
// bits do not depend on the other rows. Few rows: a block for each part, and a second kernel that adds the parts up. Many rows:
// a block adds them up itself, in the same order. Neither grid depends on the number of positions, so a recorded step serves
// them all. Inside a part, each warp takes every kWarps-th batch of positions for all query heads of the block, so that keys
// and values are read once for them.
constexpr int64_t kParts = kGqaParts;
constexpr int64_t kPartUnit = kPageTokens;

// What a further average changes. Written out, so that all kernels round alike.
struct Merge {
  float max, old_factor, new_factor;
  __device__ Merge(float old_max, float new_max)
      : max(fmaxf(old_max, new_max)), old_factor(expf(old_max - max)), new_factor(expf(new_max - max)) {}
  __device__ float operator()(float old_value, float new_value) const {
    return __fmaf_rn(old_value, old_factor, __fmul_rn(new_value, new_factor));
  }
};

// A softmax average over some positions, not yet divided by its sum. Of a warp: max and sum are those of head lane / batch, the
// means those of a lane's columns (lane + 32 j).
template <int kHeads, int kColumns>
struct WarpAverage {
  float max = -INFINITY;
  float sum = 0.0F;
  float mean[kHeads][kColumns] = {};
};
// Of a block: a thread has one column, and every head's maximum and sum.
template <int kHeads>
struct BlockAverage {
  float max[kHeads];
  float sum[kHeads];
  float mean[kHeads];
  __device__ BlockAverage() {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) max[h] = -INFINITY, sum[h] = 0.0F, mean[h] = 0.0F;
  }
};

// Lane i gets the sum over the warp's values[i], in values[0].
template <int kStep = kWarp / 2>
__device__ void transposed_sum(float (&values)[kWarp]) {
  const bool upper = (threadIdx.x & kStep) != 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const float given = upper ? values[i] : values[i + kStep];
    const float kept = upper ? values[i + kStep] : values[i];
    values[i] = kept + __shfl_xor_sync(0xffffffffU, given, kStep);
  }
  if constexpr (kStep > 1) transposed_sum<kStep / 2>(values);
}

// The columns of a lane from a row of `size` values; zeros beyond it, and where the row does not count.
template <int kColumns>
__device__ void load_columns(const float* row, bool counts, int size, float (&columns)[kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int c = lane + kWarp * j;
    columns[j] = counts && c < size ? row[c] : 0.0F;
  }
}

// Adds the warp's share of positions [begin, end) to its average.
template <int kHeads, int kColumns>
__device__ void attend(const GqaShape& shape, const PagedSegment& segment, int64_t kv_head,
                       const float (&query)[kHeads][kColumns], int64_t begin, int64_t end,
                       WarpAverage<kHeads, kColumns>& average) {
  constexpr int kBatch = kWarp / kHeads;  // positions; lane h * kBatch + p has the score of head h and position p
  static_assert(kPageTokens % kBatch == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int size = static_cast<int>(shape.size);
  const int64_t width = shape.kv_heads * shape.size;
  for (int64_t first = begin + threadIdx.x / kWarp * kBatch; first < end; first += kWarps * kBatch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kBatch), end - first));
    const float* key = page_row(segment, first, 2 * width) + kv_head * shape.size;
    float dots[kWarp];
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      float columns[kColumns];
      load_columns(key + p * 2 * width, p < count, size, columns);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0.0F;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) dot += query[h][j] * columns[j];
        dots[h * kBatch + p] = dot;
      }
    }
    transposed_sum(dots);
    const float score = lane % kBatch < count ? dots[0] : -INFINITY;
    float max = score;
#pragma unroll
    for (int step = 1; step < kBatch; step *= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, step));
    max = fmaxf(average.max, max);
    const float factor = expf(average.max - max);
    const float weight = expf(score - max);
    float sum = weight;
#pragma unroll
    for (int step = 1; step < kBatch; step *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    average.max = max;
    average.sum = average.sum * factor + sum;
    if (__any_sync(0xffffffffU, factor != 1.0F)) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float of_head = __shfl_sync(0xffffffffU, factor, h * kBatch);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) average.mean[h][j] *= of_head;
      }
    }
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      float columns[kColumns];
      load_columns(key + width + p * 2 * width, p < count, size, columns);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float of_head = __shfl_sync(0xffffffffU, weight, h * kBatch + p);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) average.mean[h][j] += of_head * columns[j];
      }
    }
  }
}

// The averages of the block's warps, merged in order. Synchronises the block.
template <int kHeads, int kColumns>
__device__ BlockAverage<kHeads> merge_warps(const WarpAverage<kHeads, kColumns>& average) {
  constexpr int kBatch = kWarp / kHeads;
  __shared__ float means[kWarps][kColumns * kWarp];
  __shared__ float maxima[kWarps][kHeads];
  __shared__ float sums[kWarps][kHeads];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int column = static_cast<int>(threadIdx.x) % (kColumns * kWarp);
  __syncthreads();  // those of the part before have been read
  if (lane % kBatch == 0) {
    maxima[warp][lane / kBatch] = average.max;
    sums[warp][lane / kBatch] = average.sum;
  }
  BlockAverage<kHeads> total;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) means[warp][lane + kWarp * j] = average.mean[h][j];
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      if (sums[w][h] == 0.0F) continue;  // no positions
      const Merge merge(total.max[h], maxima[w][h]);
      total.max[h] = merge.max;
      total.sum[h] = merge(total.sum[h], sums[w][h]);
      total.mean[h] = merge(total.mean[h], means[w][column]);
    }
  }
  return total;
}

// Grid (key/value heads times groups of kHeads query heads, rows, parts or 1). parts [rows, heads, kParts, 2 + size]: max, sum
// and mean of a part; sum 0: no positions. With a grid of one part the result goes to out [rows, heads, size].
template <int kHeads, int kColumns, bool kInParts>
__global__ void __launch_bounds__(kThreads) attention_kernel(GqaShape shape, const float* q, const PagedSegment* segments,
                                                             int64_t segment_count, float* parts, float* out, bool rounds) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = threadIdx.x;
  const int64_t t = blockIdx.y;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t blocks_of_group = (group + kHeads - 1) / kHeads;
  const int64_t kv_head = blockIdx.x / blocks_of_group;
  const int64_t first = blockIdx.x % blocks_of_group * kHeads;  // query head of the group
  const int64_t heads = min(static_cast<int64_t>(kHeads), group - first);
  const int64_t item = t * shape.heads + kv_head * group + first;  // row and head
  const PagedSegment segment = segment_of(segments, segment_count, t);
  const int64_t positions = segment.start + t - segment.first_row + 1;
  const int64_t part_size = ((positions + kParts - 1) / kParts + kPartUnit - 1) / kPartUnit * kPartUnit;
  if (kInParts && blockIdx.z * part_size >= positions) {
    if (threadIdx.x < heads) parts[((item + threadIdx.x) * kParts + blockIdx.z) * (2 + shape.size) + 1] = 0.0F;
    return;
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(shape.size));
  float query[kHeads][kColumns];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int64_t c = lane + kWarp * j;
      query[h][j] = h < heads && c < shape.size ? scale * q[(item + h) * shape.size + c] : 0.0F;
    }
  }
  const auto part_of = [&](int64_t begin) {
    WarpAverage<kHeads, kColumns> average;
    attend(shape, segment, kv_head, query, begin, min(begin + part_size, positions), average);
    return merge_warps(average);
  };
  if constexpr (kInParts) {
    const BlockAverage<kHeads> average = part_of(blockIdx.z * part_size);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
      float* to = parts + ((item + h) * kParts + blockIdx.z) * (2 + shape.size);
      if (column == 0) to[0] = average.max[h], to[1] = average.sum[h];
      if (column < shape.size) to[2 + column] = average.mean[h];
    }
  } else {
    BlockAverage<kHeads> total;
    for (int64_t begin = 0; begin < positions; begin += part_size) {
      const BlockAverage<kHeads> average = part_of(begin);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const Merge merge(total.max[h], average.max[h]);
        total.max[h] = merge.max;
        total.sum[h] = merge(total.sum[h], average.sum[h]);
        total.mean[h] = merge(total.mean[h], average.mean[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < heads && column < shape.size) {
        out[(item + h) * shape.size + column] = round_if(rounds, total.mean[h] / total.sum[h]);
      }
    }
  }
}

// Grid (heads, rows): a thread for a column.
__global__ void __launch_bounds__(kThreads) add_parts_kernel(GqaShape shape, const float* parts, float* out, bool rounds) {
  const int64_t item = static_cast<int64_t>(blockIdx.y) * shape.heads + blockIdx.x;
  const int64_t column = threadIdx.x;
  if (column >= shape.size) return;
  const float* part = parts + item * kParts * (2 + shape.size);
  float max = -INFINITY;
  float sum = 0.0F;
  float mean = 0.0F;
  for (int64_t p = 0; p < kParts; ++p, part += 2 + shape.size) {
    if (part[1] == 0.0F) break;  // nor have those behind it
    const Merge merge(max, part[0]);
    max = merge.max;
    sum = merge(sum, part[1]);
    mean = merge(mean, part[2 + column]);
  }
  out[item * shape.size + column] = round_if(rounds, mean / sum);
}

template <int kHeads, int kColumns>
void run(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments, MutableTensorView out) {
  const auto rows = static_cast<unsigned>(q.shape[0]);
  const auto count = static_cast<int64_t>(segments.size());
  const auto blocks = static_cast<unsigned>(shape.kv_heads) * blocks_for(shape.heads / shape.kv_heads, kHeads);
  if (rows > kRowsInParts) {
    attention_kernel<kHeads, kColumns, false><<<dim3(blocks, rows), kThreads, 0, stream_of(context)>>>(
        shape, floats(q), segments.data(), count, nullptr, floats(out), context.rounds());
  } else {
    const MutableTensorView parts = context.workspace->take({q.shape[0] * shape.heads * kParts, 2 + shape.size});
    attention_kernel<kHeads, kColumns, true><<<dim3(blocks, rows, kParts), kThreads, 0, stream_of(context)>>>(
        shape, floats(q), segments.data(), count, floats(parts), nullptr, false);
    add_parts_kernel<<<dim3(static_cast<unsigned>(shape.heads), rows), kThreads, 0, stream_of(context)>>>(
        shape, floats(parts), floats(out), context.rounds());
  }
  launched("gqa_attention");
}

}  // namespace

void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out) {
  if (shape.size > kThreads) {
    fail(ErrorKind::unsupported, "gqa_attention", "on a GPU: wanted heads of at most {}, found {}", kThreads, shape.size);
  }
  if (q.shape[0] == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const PagedSegment> there = device_segments(context, segments);
  const bool small_group = shape.heads / shape.kv_heads <= 4;
  if (shape.size <= 4 * kWarp) {
    small_group ? run<4, 4>(context, shape, q, there, out) : run<8, 4>(context, shape, q, there, out);
  } else {
    small_group ? run<4, 8>(context, shape, q, there, out) : run<8, 8>(context, shape, q, there, out);
  }
}

}  // namespace weft::ops::cuda
