#include "model/expert_store.h"

#include <algorithm>

#include "base/error.h"
#include "model/checkpoint.h"

namespace weft {

void MappedExperts::add_layer(LayerIndex layer, int64_t experts) {
  Layer added{layer, {}, std::vector<bool>(static_cast<size_t>(experts), false)};
  added.views.reserve(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) added.views.push_back(checkpoint_->expert(layer, expert));
  layers_.push_back(std::move(added));
}

std::span<const ops::ExpertView> MappedExperts::acquire(LayerIndex layer, std::span<const int32_t> ids) {
  const auto at = std::ranges::find(layers_, layer, &Layer::layer);
  if (at == layers_.end()) fail(ErrorKind::internal, "experts", "wanted a MoE layer of this stage, found layer {}", layer);
  for (const int32_t id : ids) {
    const auto index = static_cast<size_t>(id);
    if (at->checked[index]) continue;
    checkpoint_->check_expert_scales(layer, id);
    at->checked[index] = true;
  }
  return at->views;
}

}  // namespace weft
