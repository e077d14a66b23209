#include "ops/attention_parts.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/paged.cuh"
#include "ops/cuda/tables.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// The positions of a row are cut into kParts parts, whose ends depend on the row's position only, so that the row's bits do not
// depend on the other rows. Few rows: a block for each part, and a second kernel that adds the parts up. Many rows: a block
// adds them up itself, in the same order. Neither grid depends on the number of positions, so a recorded step serves them all.
constexpr int64_t kParts = kMlaParts;
constexpr int64_t kTile = 16;  // positions that a block has in shared memory at once; a warp holds their scores, one in a lane
constexpr int kHeads = 2;      // of a warp
constexpr int64_t kBlockHeads = kWarps * kHeads;
constexpr int kLatent = 16;  // columns of the latent in a lane, at most
constexpr int kWide = 18;    // columns of the latent and the rotary part, at most

// A softmax average over some positions, not yet divided by its sum: of a lane's columns.
struct Average {
  float max = -INFINITY;
  float sum = 0.0F;
  float mean[kLatent] = {};
};

// What a further part changes. Written out, so that both kernels round alike.
struct Merge {
  float max, old_factor, new_factor;
  __device__ Merge(float old_max, float new_max)
      : max(fmaxf(old_max, new_max)), old_factor(expf(old_max - max)), new_factor(expf(new_max - max)) {}
  __device__ float operator()(float old_value, float new_value) const {
    return __fmaf_rn(old_value, old_factor, __fmul_rn(new_value, new_factor));
  }
};

__device__ float warp_max(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, step));
  return value;
}

// Adds positions [begin, end) to the averages of kHeads heads. All warps of the block call it, with the same positions; `rows`
// [kTile, rc + dr] is their shared memory.
__device__ void attend(const MlaShape& shape, const PagedSegment& segment, const float (&query)[kHeads][kWide], int64_t begin,
                       int64_t end, float* rows, Average (&average)[kHeads]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int width = static_cast<int>(shape.latent + shape.rope);
  const int latent = static_cast<int>(shape.latent);
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int count = static_cast<int>(min(kTile, end - tile));
    __syncthreads();  // the tile before has been read
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < count; i += kWarps) {
      const float* row = cached_row(shape, segment, tile + i);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (lane + kWarp * j < width) rows[i * width + lane + kWarp * j] = row[lane + kWarp * j];
      }
    }
    __syncthreads();
    float score[kHeads];
    for (int h = 0; h < kHeads; ++h) score[h] = -INFINITY;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float* row = rows + i * width;
      float dot[kHeads] = {};
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const int c = lane + kWarp * j;
        const float value = c < width ? row[c] : 0.0F;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) dot[h] += query[h][j] * value;
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float sum = warp_sum(dot[h]);
        if (lane == i) score[h] = sum;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float max = fmaxf(average[h].max, warp_max(score[h]));
      const float factor = expf(average[h].max - max);
      score[h] = expf(score[h] - max);  // 0 beyond count
      average[h].max = max;
      average[h].sum = average[h].sum * factor + warp_sum(score[h]);
#pragma unroll
      for (float& value : average[h].mean) value *= factor;
    }
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float* row = rows + i * width;
      float weight[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) weight[h] = __shfl_sync(0xffffffffU, score[h], i);
#pragma unroll
      for (int j = 0; j < kLatent; ++j) {
        const int c = lane + kWarp * j;
        const float value = c < latent ? row[c] : 0.0F;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) average[h].mean[j] += weight[h] * value;
      }
    }
  }
}

// Grid (groups of heads, rows, parts or 1). parts [rows, heads, kParts, 2 + rc]: max, sum and mean of a part; sum 0: no
// positions. With a grid of one part the result goes to lat [rows, heads, rc].
template <bool kInParts>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(MlaShape shape, const float* q, const float* ql, const PagedSegment* segments, int64_t segment_count,
                     float* parts, float* lat) {
  extern __shared__ float rows[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = blockIdx.y;
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kBlockHeads + threadIdx.x / kWarp * kHeads;
  const PagedSegment segment = segment_of(segments, segment_count, t);
  const int64_t positions = segment.start + t - segment.first_row + 1;
  const int64_t part_size = ((positions + kParts - 1) / kParts + kTile - 1) / kTile * kTile;
  const float scale = 1.0F / sqrtf(static_cast<float>(shape.nope + shape.rope));
  float query[kHeads][kWide];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int64_t item = t * shape.heads + min(head + h, shape.heads - 1);
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const int64_t c = lane + kWarp * j;
      query[h][j] = c < shape.latent ? scale * ql[item * shape.latent + c]
                    : c < shape.latent + shape.rope
                        ? scale * q[item * (shape.nope + shape.rope) + shape.nope + c - shape.latent]
                        : 0.0F;
    }
  }
  const auto item_of = [&](int h) { return t * shape.heads + head + h; };
  if constexpr (kInParts) {
    const int64_t begin = blockIdx.z * part_size;
    Average average[kHeads];
    if (begin < positions) attend(shape, segment, query, begin, min(begin + part_size, positions), rows, average);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (head + h >= shape.heads) return;
      float* to = parts + (item_of(h) * kParts + blockIdx.z) * (2 + shape.latent);
      if (lane == 0) to[0] = average[h].max, to[1] = average[h].sum;
      if (begin >= positions) continue;
#pragma unroll
      for (int j = 0; j < kLatent; ++j) {
        if (lane + kWarp * j < shape.latent) to[2 + lane + kWarp * j] = average[h].mean[j];
      }
    }
  } else {
    Average total[kHeads];
    for (int64_t begin = 0; begin < positions; begin += part_size) {
      Average average[kHeads];
      attend(shape, segment, query, begin, min(begin + part_size, positions), rows, average);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const Merge merge(total[h].max, average[h].max);
        total[h].max = merge.max;
        total[h].sum = merge(total[h].sum, average[h].sum);
#pragma unroll
        for (int j = 0; j < kLatent; ++j) total[h].mean[j] = merge(total[h].mean[j], average[h].mean[j]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (head + h >= shape.heads) return;
#pragma unroll
      for (int j = 0; j < kLatent; ++j) {
        const int64_t c = lane + kWarp * j;
        if (c < shape.latent) lat[item_of(h) * shape.latent + c] = total[h].mean[j] / total[h].sum;
      }
    }
  }
}

// Grid (heads, rows): a thread for some columns.
__global__ void __launch_bounds__(kThreads) add_parts_kernel(MlaShape shape, const float* parts, float* lat) {
  const int64_t item = static_cast<int64_t>(blockIdx.y) * shape.heads + blockIdx.x;
  const float* part = parts + item * kParts * (2 + shape.latent);
  for (int64_t c = threadIdx.x; c < shape.latent; c += kThreads) {
    float max = -INFINITY;
    float sum = 0.0F;
    float mean = 0.0F;
    for (int64_t p = 0; p < kParts; ++p) {
      const float* next = part + p * (2 + shape.latent);
      if (next[1] == 0.0F) break;  // nor have those behind it
      const Merge merge(max, next[0]);
      max = merge.max;
      sum = merge(sum, next[1]);
      mean = merge(mean, next[2 + c]);
    }
    lat[item * shape.latent + c] = mean / sum;
  }
}

}  // namespace

void mla_attention(Context& context, const MlaShape& shape, TensorView q, TensorView ql, std::span<const PagedSegment> segments,
                   MutableTensorView lat) {
  if (shape.latent > kWarp * kLatent || shape.latent + shape.rope > kWarp * kWide) {
    fail(ErrorKind::unsupported, "mla_attention",
         "on a GPU: wanted a latent of at most {} and {} with its rotary part, found {} and {}", kWarp * kLatent, kWarp * kWide,
         shape.latent, shape.latent + shape.rope);
  }
  const int64_t rows = q.shape[0];
  if (rows == 0) return;
  const Workspace::Scope scope(*context.workspace);
  const std::span<const PagedSegment> there = device_segments(context, segments);
  const auto count = static_cast<int64_t>(there.size());
  const unsigned groups = blocks_for(shape.heads, kBlockHeads);
  const auto shared = static_cast<size_t>(kTile * (shape.latent + shape.rope)) * sizeof(float);
  if (rows > kRowsInParts) {
    attention_kernel<false><<<dim3(groups, static_cast<unsigned>(rows)), kThreads, shared, stream_of(context)>>>(
        shape, floats(q), floats(ql), there.data(), count, nullptr, floats(lat));
  } else {
    const MutableTensorView parts = context.workspace->take({rows * shape.heads * kParts, 2 + shape.latent});
    attention_kernel<true><<<dim3(groups, static_cast<unsigned>(rows), kParts), kThreads, shared, stream_of(context)>>>(
        shape, floats(q), floats(ql), there.data(), count, floats(parts), nullptr);
    add_parts_kernel<<<dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(rows)), kThreads, 0,
                       stream_of(context)>>>(shape, floats(parts), floats(lat));
  }
  launched("mla_attention");
}

}  // namespace weft::ops::cuda
