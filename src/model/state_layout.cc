#include "model/state_layout.h"

#include <utility>

#include "base/error.h"

namespace weft {
namespace {

constexpr int64_t kFloatsPerLine = 16;  // tensors start on 64-byte lines

int64_t round_up(int64_t floats) { return (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine; }

}  // namespace

void StateLayout::add_slot_layer(LayerIndex layer, std::vector<SlotTensor> tensors) {
  for (SlotTensor& tensor : tensors) {
    tensor.offset = slot_floats_;
    slot_floats_ += round_up(tensor.shape.elements());
  }
  states_.push_back({layer, std::move(tensors), {}, 0, 0});
}

void StateLayout::add_page_layer(LayerIndex layer, std::vector<PageTensor> tensors) {
  LayerState state{layer, {}, std::move(tensors), 0, page_floats_};
  for (PageTensor& tensor : state.page) {
    tensor.column = state.page_width;
    state.page_width += tensor.width;
  }
  page_floats_ += round_up(state.page_width * ops::kPageTokens);
  states_.push_back(std::move(state));
}

const LayerState& StateLayout::at(LayerIndex layer) const {
  const int64_t index = layer.value - layers_.begin.value;
  if (!layers_.contains(layer) || index >= static_cast<int64_t>(states_.size())) {
    fail(ErrorKind::internal, "state", "wanted a layer of [{}, {}), found {}", layers_.begin, layers_.end, layer);
  }
  return states_[static_cast<size_t>(index)];
}

ByteCount StateLayout::bytes(TokenCount tokens) const {
  return ByteCount((slot_floats_ + pages_for(tokens) * page_floats_) * static_cast<int64_t>(sizeof(float)));
}

}  // namespace weft
