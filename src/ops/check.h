// Checks of operands, shared by the entries of the operators. Every failure is an internal error that names the operator.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "ops/context.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

namespace weft::ops {

// A context with a worker pool and a communicator; for a GPU, a device and a workspace too.
void check_context(const Context& context, std::string_view op);

// `tensor` has `dtype`, exactly the extents `wanted`, and memory if it has elements.
void check_tensor(std::string_view op, std::string_view name, const TensorView& tensor, std::initializer_list<int64_t> wanted,
                  DType dtype = DType::f32);

// `tensor` has `rank` axes; returns extent `axis`. Used to learn a size that the other operands are then checked against.
[[nodiscard]] int64_t extent_of(std::string_view op, std::string_view name, const TensorView& tensor, int rank, int axis);

// `weight` is [out, in] with memory; packed formats have scales (affine: biases too) and whole groups.
void check_weight(std::string_view op, std::string_view name, const WeightView& weight, int64_t out, int64_t in);

// Segments lie inside [0, rows), have an output state, and do not overlap; every row belongs to one.
void check_segments(std::string_view op, std::span<const StateSegment> segments, int64_t rows);

// The same, and the pages cover start + row_count positions.
void check_segments(std::string_view op, std::span<const PagedSegment> segments, int64_t rows);

// All sizes positive.
void check_mla_shape(std::string_view op, const MlaShape& shape);

// All sizes positive, and whole groups of query heads.
void check_gqa_shape(std::string_view op, const GqaShape& shape);

}  // namespace weft::ops
