// What crosses from one stage to the next: hidden rows and, with Attention Residuals, the frozen residual blocks (ruling R1).
#pragma once

#include <memory>
#include <vector>

#include "base/units.h"
#include "tensor/tensor.h"

namespace weft {

// In one process a boundary is moved and its blocks are shared, never copied.
struct Boundary {
  LayerIndex layer;                                   // s: the first layer of the receiving stage
  std::shared_ptr<const Tensor> hidden;               // [T, D] output of layer s - 1 (the running sum)
  std::vector<std::shared_ptr<const Tensor>> blocks;  // K = ceil(s / B) frozen blocks [T, D], in storage order
  bool sealed = false;                                // s is a multiple of B: `hidden` is block s / B too

  [[nodiscard]] int64_t rows() const { return hidden->shape()[0]; }
  [[nodiscard]] int64_t planes() const { return static_cast<int64_t>(blocks.size()) + 1; }
};

// The wire form [T, (K+1) * D]: the running sum first, then the blocks in storage order.
[[nodiscard]] Tensor pack_boundary(const Boundary& boundary);

// The reverse. Throws bad_input naming s, K and the received shape when the width is not (blocks + 1) * hidden_size.
[[nodiscard]] Boundary unpack_boundary(TensorView packed, LayerIndex layer, int64_t blocks, int64_t hidden_size, bool sealed);

}  // namespace weft
