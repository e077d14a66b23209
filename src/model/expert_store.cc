#include "model/expert_store.h"

#include <algorithm>

#include "base/error.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

template <class Layers>
auto& find_layer(Layers& layers, LayerIndex layer) {
  const auto at = std::ranges::find_if(layers, [&](const auto& added) { return added.layer == layer; });
  if (at == layers.end()) fail(ErrorKind::internal, "experts", "wanted a MoE layer of this stage, found layer {}", layer);
  return *at;
}

}  // namespace

void MappedExperts::add_layer(LayerIndex layer, int64_t experts) {
  Layer added{layer, {}, std::vector<bool>(static_cast<size_t>(experts), false)};
  added.views.reserve(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) added.views.push_back(checkpoint_->expert(layer, expert));
  layers_.push_back(std::move(added));
}

ops::ExpertTable MappedExperts::acquire(LayerIndex layer, std::span<const int32_t> ids) {
  Layer& found = find_layer(layers_, layer);
  for (const int32_t id : ids) {
    const auto index = static_cast<size_t>(id);
    if (found.checked[index]) continue;
    checkpoint_->check_expert_scales(layer, id);
    found.checked[index] = true;
  }
  return found.views;
}

void ResidentExperts::add_layer(LayerIndex layer, int64_t experts) {
  Layer added{layer, {}, nullptr};
  added.views.reserve(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) {
    if (!placer_.dummy()) checkpoint_->check_expert_scales(layer, expert);
    const ops::ExpertView view = checkpoint_->expert(layer, expert);
    added.views.push_back({placer_.place(view.w1), placer_.place(view.w2), placer_.place(view.w3)});
  }
  added.on_device = placer_.place(added.views);
  layers_.push_back(std::move(added));
}

ops::ExpertTable ResidentExperts::acquire(LayerIndex layer, std::span<const int32_t> /*ids*/) {
  const Layer& found = find_layer(layers_, layer);
  return {found.views, found.on_device};
}

}  // namespace weft
