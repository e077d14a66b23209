// What crosses from one stage to the next: hidden rows and, with Attention Residuals, the frozen residual blocks (ruling R1).
//
//     const BoundaryForm form = boundary_form(config, s, activation_dtype(profile));
//     Tensor wire = pack_boundary(boundary, form.activation);                            // stage [.., s)
//     Boundary same = unpack_boundary(wire.view(), boundary.sealed, form, batch.rows()); // stage [s, ..)
//
// In memory a boundary is float32. In profile bf16 all its values are bf16 values, so that half the bytes cross and not one bit
// is lost.
#pragma once

#include <memory>
#include <vector>

#include "base/units.h"
#include "model/model_config.h"
#include "ops/context.h"
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

// What every boundary before a layer looks like on the wire: [T, (K+1) * D], the running sum first, then the blocks in storage
// order.
struct BoundaryForm {
  LayerIndex layer;    // s
  int64_t blocks = 0;  // K
  bool sealed = false;
  int64_t hidden_size = 0;        // D
  DType activation = DType::f32;  // F32 or BF16

  [[nodiscard]] int64_t planes() const { return blocks + 1; }
  [[nodiscard]] int64_t width() const { return planes() * hidden_size; }
  friend bool operator==(const BoundaryForm&, const BoundaryForm&) = default;
};
[[nodiscard]] BoundaryForm boundary_form(const ModelConfig& config, LayerIndex layer, DType activation);

// The type in which activations cross without loss: F32 in profile exact, BF16 in profile bf16.
[[nodiscard]] DType activation_dtype(ops::Profile profile);

// The wire form in F32 or BF16. Nothing is rounded: throws an internal error naming plane, row and value when a value is no
// BF16 value, unsupported for another type.
[[nodiscard]] Tensor pack_boundary(const Boundary& boundary, DType activation);
// The same into memory that is there, of the type and shape [T, (K+1) * D].
void pack_boundary(const Boundary& boundary, const MutableTensorView& packed);

// The reverse, of `rows` rows; `sealed` is the sender's mark. The bytes of `packed` need no alignment. Throws bad_input naming
// s, K and the received type and shape when they, or the mark, are not those of the form.
[[nodiscard]] Boundary unpack_boundary(TensorView packed, bool sealed, const BoundaryForm& form, int64_t rows);

}  // namespace weft
