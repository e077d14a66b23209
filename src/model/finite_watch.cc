#include "model/finite_watch.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr int64_t kBytes = sizeof(uint64_t);
constexpr int64_t kPlaces = 2;  // of a layer

}  // namespace

void FiniteWatch::begin() {
  if (device_.is_host()) return;
  if (first_ == nullptr) {
    first_ = device_.take(ByteCount(kBytes));
    none_ = device_.take(ByteCount(kBytes));
    here_ = device_.take_host(ByteCount(kBytes));
    device_.upload(none_, reinterpret_cast<const std::byte*>(&ops::kAllFinite), kBytes);
  }
  device_.copy(first_, none_, kBytes);
}

void FiniteWatch::look(ops::Context& context, const Batch& batch, LayerIndex layer, Place place, TensorView rows) {
  width_ = rows.shape.last();
  const int64_t number = layer.value * kPlaces + static_cast<int64_t>(place);
  if (!device_.is_host()) {
    ops::first_not_finite(context, rows, number, {reinterpret_cast<uint64_t*>(first_), 1});
    return;
  }
  uint64_t first = ops::kAllFinite;
  ops::first_not_finite(context, rows, number, {&first, 1});
  if (const auto found = ops::read_not_finite(first)) throw fault(batch, *found);
}

void FiniteWatch::end() {
  if (!device_.is_host()) device_.post(here_, first_, kBytes);
}

void FiniteWatch::settle(const Batch& batch) {
  if (device_.is_host()) return;
  device_.download(nullptr, nullptr, 0);
  uint64_t first = 0;
  std::memcpy(&first, here_, kBytes);
  const auto found = ops::read_not_finite(first);
  if (!found) return;
  const LayerIndex layer(found->place / kPlaces);
  throw Error(ErrorKind::bad_checkpoint, "stage", fmt::format("layer {}: {}", layer, fault(batch, *found).what()));
}

Error FiniteWatch::fault(const Batch& batch, const ops::NotFinite& found) const {
  const int64_t row = found.element / width_;
  const auto group = std::ranges::find_if(
      batch.groups, [&](const RowGroup& g) { return g.first_row <= row && row < g.first_row + g.row_count; });
  const int64_t position = group->start.value + row - group->first_row;
  const bool attention = found.place % kPlaces == static_cast<int64_t>(Place::attention);
  return {
      ErrorKind::bad_checkpoint, attention ? "attention" : "MLP",
      fmt::format("position {}, element {}: wanted a finite value, found {}", position, found.element % width_, found.value)};
}

}  // namespace weft
