#include "model/boundary.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace weft {

Tensor pack_boundary(const Boundary& boundary) {
  const int64_t rows = boundary.rows();
  const int64_t width = boundary.hidden->shape()[1];
  Tensor packed = Tensor::uninitialized(DType::f32, {rows, boundary.planes() * width});
  float* out = packed.as<float>().data();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t plane = 0; plane < boundary.planes(); ++plane) {
      const Tensor& source = plane == 0 ? *boundary.hidden : *boundary.blocks[static_cast<size_t>(plane - 1)];
      std::memcpy(out, source.as<float>().data() + row * width, static_cast<size_t>(width) * sizeof(float));
      out += width;
    }
  }
  return packed;
}

Boundary unpack_boundary(TensorView packed, LayerIndex layer, int64_t blocks, int64_t hidden_size, bool sealed) {
  const int64_t wanted = (blocks + 1) * hidden_size;
  if (packed.dtype != DType::f32 || packed.shape.rank() != 2 || packed.shape[1] != wanted) {
    fail(ErrorKind::bad_input, "boundary",
         "before layer {}: wanted F32 [rows, (K + 1) * {}] = [rows, {}] with K = {} blocks, found {} {}", layer, hidden_size,
         wanted, blocks, packed.dtype, packed.shape);
  }
  const int64_t rows = packed.shape[0];
  std::vector<Tensor> planes;
  for (int64_t plane = 0; plane <= blocks; ++plane) {
    Tensor& made = planes.emplace_back(Tensor::uninitialized(DType::f32, {rows, hidden_size}));
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(made.as<float>().data() + row * hidden_size, packed.as<float>().data() + row * wanted + plane * hidden_size,
                  static_cast<size_t>(hidden_size) * sizeof(float));
    }
  }
  Boundary boundary;
  boundary.layer = layer;
  boundary.sealed = sealed;
  boundary.hidden = std::make_shared<const Tensor>(std::move(planes.front()));
  for (size_t plane = 1; plane < planes.size(); ++plane) {
    boundary.blocks.push_back(std::make_shared<const Tensor>(std::move(planes[plane])));
  }
  return boundary;
}

}  // namespace weft
