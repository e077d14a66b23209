#include "model/boundary.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr uint32_t kLostBits = 0xFFFFU;  // of a float32, in BF16

// A row of one plane; returns the bits that BF16 cannot hold, of all values together.
uint32_t narrow_row(const float* from, int64_t count, std::byte* to) {
  uint32_t lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof bits);
    const auto upper = static_cast<uint16_t>(bits >> 16U);
    lost |= bits;
    std::memcpy(to + 2 * i, &upper, sizeof upper);
  }
  return lost & kLostBits;
}

void widen_row(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t upper = 0;
    std::memcpy(&upper, from + 2 * i, sizeof upper);
    to[i] = bf16_to_f32(upper);
  }
}

[[noreturn]] void refuse_rounding(const Boundary& boundary, int64_t plane, int64_t row, std::span<const float> values) {
  size_t column = 0;
  while ((std::bit_cast<uint32_t>(values[column]) & kLostBits) == 0) ++column;
  fail(ErrorKind::internal, "boundary",
       "before layer {}: wanted values of bf16, found {:.9g} in plane {} ({}), row {}, column {}", boundary.layer,
       values[column], plane, plane == 0 ? std::string("the running sum") : fmt::format("block {}", plane - 1), row, column);
}

}  // namespace

BoundaryForm boundary_form(const ModelConfig& config, LayerIndex layer, DType activation) {
  return {layer, config.blocks_before(layer), config.starts_block(layer), config.hidden_size, activation};
}

DType activation_dtype(ops::Profile profile) { return profile == ops::Profile::bf16 ? DType::bf16 : DType::f32; }

Tensor pack_boundary(const Boundary& boundary, DType activation) {
  Tensor packed = Tensor::uninitialized(activation, {boundary.rows(), boundary.planes() * boundary.hidden->shape()[1]});
  pack_boundary(boundary, packed.mutable_view());
  return packed;
}

void pack_boundary(const Boundary& boundary, const MutableTensorView& packed) {
  const int64_t rows = boundary.rows();
  const int64_t width = boundary.hidden->shape()[1];
  if (packed.dtype != DType::f32 && packed.dtype != DType::bf16)
    fail(ErrorKind::unsupported, "boundary", "wanted F32 or BF16 as the type that crosses, found {}", packed.dtype);
  if (const Shape wanted{rows, boundary.planes() * width}; !(packed.shape == wanted))
    fail(ErrorKind::internal, "boundary", "before layer {}: wanted memory for {}, found {}", boundary.layer, wanted,
         packed.shape);
  const int64_t bytes = width * size_of(packed.dtype);
  std::byte* out = packed.data;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t plane = 0; plane < boundary.planes(); ++plane, out += bytes) {
      const Tensor& source = plane == 0 ? *boundary.hidden : *boundary.blocks[static_cast<size_t>(plane - 1)];
      const float* const from = source.as<float>().data() + row * width;
      if (packed.dtype == DType::f32) {
        std::memcpy(out, from, static_cast<size_t>(bytes));
      } else if (narrow_row(from, width, out) != 0) {
        refuse_rounding(boundary, plane, row, {from, static_cast<size_t>(width)});
      }
    }
  }
}

Boundary unpack_boundary(TensorView packed, bool sealed, const BoundaryForm& form, int64_t rows) {
  const Shape wanted{rows, form.width()};
  if (packed.dtype != form.activation || packed.shape != wanted || sealed != form.sealed) {
    fail(ErrorKind::bad_input, "boundary",
         "before layer {}: wanted {} [rows, (K + 1) * {}] = {} with K = {} blocks{}, found {} {}{}", form.layer,
         form.activation, form.hidden_size, wanted, form.blocks, form.sealed ? " and plane 0 sealed" : "", packed.dtype,
         packed.shape,
         sealed == form.sealed ? ""
         : sealed              ? " with plane 0 sealed"
                               : " with plane 0 not sealed");
  }
  Boundary boundary;
  boundary.layer = form.layer;
  boundary.sealed = sealed;
  const int64_t bytes = form.hidden_size * size_of(form.activation);
  for (int64_t plane = 0; plane < form.planes(); ++plane) {
    Tensor made = Tensor::uninitialized(DType::f32, {rows, form.hidden_size});
    float* to = made.as<float>().data();
    const std::byte* from = packed.data + plane * bytes;
    for (int64_t row = 0; row < rows; ++row, to += form.hidden_size, from += form.planes() * bytes) {
      if (form.activation == DType::f32) {
        std::memcpy(to, from, static_cast<size_t>(bytes));
      } else {
        widen_row(from, form.hidden_size, to);
      }
    }
    auto shared = std::make_shared<const Tensor>(std::move(made));
    if (plane == 0) {
      boundary.hidden = std::move(shared);
    } else {
      boundary.blocks.push_back(std::move(shared));
    }
  }
  return boundary;
}

}  // namespace weft
