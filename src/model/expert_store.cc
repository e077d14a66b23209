#include "model/expert_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/pages.h"
#include "formats/mapped_reader.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

template <class Layers>
auto& find_layer(Layers& layers, LayerIndex layer) {
  const auto at = std::ranges::find_if(layers, [&](const auto& added) { return added.layer == layer; });
  if (at == layers.end()) fail(ErrorKind::internal, "experts", "wanted a MoE layer of this stage, found layer {}", layer);
  return *at;
}

// The stored tensors of an expert.
std::vector<MappedPart> parts_of(const ops::ExpertView& expert) {
  std::vector<MappedPart> parts;
  for (const ops::WeightView* weight : {&expert.w1, &expert.w2, &expert.w3}) {
    parts.emplace_back(weight->data, static_cast<size_t>(weight->data_bytes()));
    if (weight->scale_bytes() > 0) parts.emplace_back(weight->scales, static_cast<size_t>(weight->scale_bytes()));
    if (weight->bias_bytes() > 0) parts.emplace_back(weight->biases, static_cast<size_t>(weight->bias_bytes()));
  }
  return parts;
}

}  // namespace

void MappedExperts::add_layer(LayerIndex layer, int64_t experts) {
  Layer added{layer, {}, std::vector<Expert>(static_cast<size_t>(experts)), {}};
  added.views.reserve(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) added.views.push_back(checkpoint_->expert(layer, expert));
  for (const MappedPart part : parts_of(added.views.front())) added.expert_bytes += ByteCount(std::ssize(part));
  layers_.push_back(std::move(added));
}

ops::ExpertTable MappedExperts::acquire(LayerIndex layer, std::span<const int32_t> ids) {
  Layer& found = find_layer(layers_, layer);
  ++calls_;
  std::vector<size_t> missing;
  for (const int32_t id : ids) {
    Expert& expert = found.experts[static_cast<size_t>(id)];
    if (expert.last_call == calls_) continue;
    expert.last_call = calls_;
    if (expert.place) {
      order_.splice(order_.end(), order_, *expert.place);
    } else {
      missing.push_back(static_cast<size_t>(id));
    }
  }
  if (!missing.empty()) fetch(found, missing);
  for (const int32_t id : ids) {
    Expert& expert = found.experts[static_cast<size_t>(id)];
    if (expert.checked) continue;
    checkpoint_->check_expert_scales(layer, id);
    expert.checked = true;
  }
  return found.views;
}

void ResidentExperts::add_layer(LayerIndex layer, int64_t experts) {
  Layer added{layer, {}, nullptr};
  added.views.reserve(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) {
    const ops::ExpertView view = checkpoint_->expert(layer, expert);
    if (!placer_.dummy()) {
      read_mapped(parts_of(view));
      checkpoint_->check_expert_scales(layer, expert);
    }
    for (const MappedPart part : parts_of(view)) held_ += ByteCount(std::ssize(part));
    added.views.push_back({placer_.place(view.w1), placer_.place(view.w2), placer_.place(view.w3)});
  }
  added.on_device = placer_.place(added.views);
  layers_.push_back(std::move(added));
}

ops::ExpertTable ResidentExperts::acquire(LayerIndex layer, std::span<const int32_t> /*ids*/) {
  const Layer& found = find_layer(layers_, layer);
  return {found.views, found.on_device};
}

void MappedExperts::fetch(Layer& layer, std::span<const size_t> experts) {
  make_room(layer, ByteCount(layer.expert_bytes.value * std::ssize(experts)));
  std::vector<MappedPart> parts;
  for (const size_t id : experts) {
    const std::vector<MappedPart> more = parts_of(layer.views[id]);
    parts.insert(parts.end(), more.begin(), more.end());
    layer.experts[id].place = order_.insert(order_.end(), Key{static_cast<size_t>(&layer - layers_.data()), id});
    held_ += layer.expert_bytes;
  }
  read_mapped(std::move(parts));
}

void MappedExperts::make_room(const Layer& wanting, ByteCount wanted) {
  while (budget_ && held_ + wanted > *budget_) {
    const Key oldest = order_.empty() ? Key{} : order_.front();
    Layer& layer = layers_[oldest.layer];
    if (order_.empty() || layer.experts[oldest.expert].last_call == calls_) {
      fail(ErrorKind::unavailable, "experts",
           "layer {}: wanted room for the experts of one step, found a budget of {} bytes that they exceed; more memory or "
           "fewer prompt tokens a step",
           wanting.layer, with_commas(budget_->value));
    }
    for (const MappedPart part : parts_of(layer.views[oldest.expert])) give_back(part);
    layer.experts[oldest.expert].place.reset();
    held_ -= layer.expert_bytes;
    order_.pop_front();
  }
}

}  // namespace weft
