// What a sequence's state consists of, for layers [begin, end) of a model. Family-neutral: each layer keeps named tensors of a
// fixed size (recurrent and convolution state, in a slot) or named rows per token (latents, keys and values, in pages).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "ops/ops.h"
#include "tensor/shape.h"

namespace weft {

// The recurrent state of linear attention, float32 in every profile; other slot tensors are rows of activations.
inline constexpr std::string_view kRecurrentState = "S";

// A float32 tensor of fixed size, part of a slot.
struct SlotTensor {
  std::string name;  // of the saved form, e.g. "S", "conv_q"
  Shape shape;
  int64_t offset = 0;  // floats from the start of the slot
};

// `width` floats per token, part of a page row.
struct PageTensor {
  std::string name;  // of the saved form, e.g. "latent", "pe"
  int64_t width = 0;
  int64_t column = 0;  // floats from the start of the row
};

struct LayerState {
  LayerIndex layer;
  std::vector<SlotTensor> slot;
  std::vector<PageTensor> page;
  int64_t page_width = 0;   // floats per token in a page row of this layer
  int64_t page_offset = 0;  // floats from the start of a page to this layer's [kPageTokens, page_width] rows
};

class StateLayout {
 public:
  explicit StateLayout(LayerRange layers) : layers_(layers) {}

  // Layers are added in ascending order. Offsets are filled in here.
  void add_slot_layer(LayerIndex layer, std::vector<SlotTensor> tensors);
  void add_page_layer(LayerIndex layer, std::vector<PageTensor> tensors);

  [[nodiscard]] LayerRange layers() const { return layers_; }
  [[nodiscard]] const std::vector<LayerState>& states() const { return states_; }
  [[nodiscard]] const LayerState& at(LayerIndex layer) const;

  [[nodiscard]] int64_t slot_floats() const { return slot_floats_; }
  [[nodiscard]] int64_t page_floats() const { return page_floats_; }
  [[nodiscard]] ByteCount slot_bytes() const { return ByteCount(slot_floats_ * static_cast<int64_t>(sizeof(float))); }
  [[nodiscard]] ByteCount page_bytes() const { return ByteCount(page_floats_ * static_cast<int64_t>(sizeof(float))); }
  // Bytes of one sequence that has consumed `tokens` (whole pages).
  [[nodiscard]] ByteCount bytes(TokenCount tokens) const;

 private:
  LayerRange layers_;
  std::vector<LayerState> states_;
  int64_t slot_floats_ = 0;
  int64_t page_floats_ = 0;
};

// Pages that hold positions [0, tokens).
[[nodiscard]] constexpr int64_t pages_for(TokenCount tokens) {
  return (tokens.value + ops::kPageTokens - 1) / ops::kPageTokens;
}

}  // namespace weft
