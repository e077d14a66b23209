#include "ops/check.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ops/weight_decode.h"

namespace weft::ops {
namespace {

// Each row of [0, rows) in exactly one segment.
template <class Segment>
void check_cover(std::string_view op, std::span<const Segment> segments, int64_t rows) {
  int64_t expected = 0;
  bool in_order = true;
  for (const Segment& segment : segments) {
    if (segment.first_row < 0 || segment.row_count < 0 || segment.row_count > rows - segment.first_row) {
      fail(ErrorKind::internal, op, "segment of rows [{}, +{}): wanted a part of [0, {})", segment.first_row, segment.row_count,
           rows);
    }
    in_order = in_order && segment.first_row == expected;
    expected = segment.first_row + segment.row_count;
  }
  if (in_order && expected == rows) return;
  std::vector<std::pair<int64_t, int64_t>> sorted;  // first, end
  for (const Segment& segment : segments) sorted.emplace_back(segment.first_row, segment.first_row + segment.row_count);
  std::ranges::sort(sorted);
  int64_t covered = 0;
  for (const auto& [first, end] : sorted) {
    if (first != covered && first != end) {
      fail(ErrorKind::internal, op, "segments: wanted every row of [0, {}) once, found a break at row {}", rows,
           std::min(first, covered));
    }
    if (first != end) covered = end;
  }
  if (covered != rows) {
    fail(ErrorKind::internal, op, "segments: wanted every row of [0, {}) once, found none for row {}", rows, covered);
  }
}

}  // namespace

void check_context(const Context& context, std::string_view op) {
  if (context.pool == nullptr || context.comm == nullptr) {
    fail(ErrorKind::internal, op, "wanted a context with a worker pool and a communicator, found null");
  }
  if (context.on_gpu() && (context.device == nullptr || context.workspace == nullptr)) {
    fail(ErrorKind::internal, op, "wanted a context with a device and a workspace on it, found null");
  }
}

void check_tensor(std::string_view op, std::string_view name, const TensorView& tensor, std::initializer_list<int64_t> wanted,
                  DType dtype) {
  const Shape shape(wanted);
  if (tensor.dtype != dtype || !(tensor.shape == shape)) {
    fail(ErrorKind::internal, op, "{}: wanted {} {}, found {} {}", name, dtype, shape, tensor.dtype, tensor.shape);
  }
  if (tensor.data == nullptr && tensor.elements() > 0) {
    fail(ErrorKind::internal, op, "{}: wanted memory of {} {}, found null", name, dtype, shape);
  }
}

int64_t extent_of(std::string_view op, std::string_view name, const TensorView& tensor, int rank, int axis) {
  if (tensor.shape.rank() != rank) {
    fail(ErrorKind::internal, op, "{}: wanted {} axes, found {}", name, rank, tensor.shape);
  }
  return tensor.shape[axis];
}

void check_weight(std::string_view op, std::string_view name, const WeightView& weight, int64_t out, int64_t in) {
  if (weight.out != out || weight.in != in) {
    fail(ErrorKind::internal, op, "{}: wanted [{}, {}], found [{}, {}]", name, out, in, weight.out, weight.in);
  }
  if (weight.data == nullptr && out * in > 0) fail(ErrorKind::internal, op, "{}: wanted memory, found null", name);
  if (weight.format == WeightFormat::f32 || weight.format == WeightFormat::bf16) return;
  if (weight.format == WeightFormat::fp8_block && weight.block_row >= kScaleBlock) {
    fail(ErrorKind::internal, op, "{}: wanted a first row in [0, {}) of its block, found {}", name, kScaleBlock,
         weight.block_row);
  }
  int64_t group = weight.format == WeightFormat::mxfp4 ? kMxGroup : 1;
  if (weight.format == WeightFormat::affine) {
    constexpr std::array<int, 6> kBits = {2, 3, 4, 5, 6, 8};
    constexpr std::array<int, 3> kGroups = {32, 64, 128};
    if (std::ranges::find(kBits, weight.bits) == kBits.end() || std::ranges::find(kGroups, weight.group) == kGroups.end()) {
      fail(ErrorKind::internal, op,
           "{}: wanted 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, found {} bits, groups of {}", name, weight.bits,
           weight.group);
    }
    group = weight.group;
  }
  if (in % group != 0) fail(ErrorKind::internal, op, "{}: wanted whole groups of {}, found in = {}", name, group, in);
  if (out * in == 0) return;
  if (weight.scales == nullptr) fail(ErrorKind::internal, op, "{}: wanted scales, found null", name);
  if (weight.format == WeightFormat::affine && weight.biases == nullptr) {
    fail(ErrorKind::internal, op, "{}: wanted biases, found null", name);
  }
}

void check_segments(std::string_view op, std::span<const StateSegment> segments, int64_t rows) {
  check_cover(op, segments, rows);
  for (const StateSegment& segment : segments) {
    if (segment.out == nullptr) {
      fail(ErrorKind::internal, op, "segment at row {}: wanted memory for the new state, found null", segment.first_row);
    }
  }
}

void check_segments(std::string_view op, std::span<const PagedSegment> segments, int64_t rows) {
  check_cover(op, segments, rows);
  for (const PagedSegment& segment : segments) {
    const int64_t covered = static_cast<int64_t>(segment.pages.size()) * kPageTokens;
    if (segment.start < 0 || segment.start > covered - segment.row_count) {
      fail(ErrorKind::internal, op, "segment at row {}: wanted pages for positions [{}, +{}), found {} pages of {}",
           segment.first_row, segment.start, segment.row_count, segment.pages.size(), kPageTokens);
    }
    const int64_t used = (segment.start + segment.row_count + kPageTokens - 1) / kPageTokens;
    for (int64_t page = 0; page < used; ++page) {
      if (segment.pages[static_cast<size_t>(page)] == nullptr) {
        fail(ErrorKind::internal, op, "segment at row {}: wanted memory for page {}, found null", segment.first_row, page);
      }
    }
  }
}

void check_mla_shape(std::string_view op, const MlaShape& shape) {
  if (shape.heads < 1 || shape.nope < 1 || shape.rope < 0 || shape.value < 1 || shape.latent < 1) {
    fail(ErrorKind::internal, op, "wanted positive sizes, found heads {}, nope {}, rope {}, value {}, latent {}", shape.heads,
         shape.nope, shape.rope, shape.value, shape.latent);
  }
}

void check_gqa_shape(std::string_view op, const GqaShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.size < 1 || shape.heads % shape.kv_heads != 0) {
    fail(ErrorKind::internal, op, "wanted positive sizes and whole groups of heads, found heads {}, kv heads {}, size {}",
         shape.heads, shape.kv_heads, shape.size);
  }
}

}  // namespace weft::ops
