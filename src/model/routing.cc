#include "model/routing.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"
#include "model/batch.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "routing";

}  // namespace

LayerRouting routing_of_rows(const Routing& routing, LayerIndex layer, std::span<const RowGroup> groups, int64_t experts,
                             int64_t chosen) {
  const auto found = routing.find(layer);
  if (found == routing.end())
    fail(ErrorKind::bad_input, kPlace, "layer {}: wanted the experts of this layer, found none", layer);
  const LayerRouting& record = found->second;
  const int64_t tokens = record.experts.shape()[0];
  if (record.experts.shape()[1] != chosen) {
    fail(ErrorKind::bad_input, kPlace, "layer {}: wanted {} experts per token, found {}", layer, chosen,
         record.experts.shape()[1]);
  }
  const Shape shape{groups.back().first_row + groups.back().row_count, chosen};
  LayerRouting made{Tensor::uninitialized(DType::i32, shape), Tensor::uninitialized(DType::f32, shape), {}};
  for (const RowGroup& group : groups) {
    const int64_t end = group.start.value + group.row_count;
    if (end > tokens) fail(ErrorKind::bad_input, kPlace, "layer {}: wanted {} tokens, found {}", layer, end, tokens);
    const auto from = static_cast<size_t>(group.start.value * chosen);
    const auto count = static_cast<size_t>(group.row_count * chosen);
    const int64_t to = group.first_row * chosen;
    std::ranges::copy(record.experts.as<int32_t>().subspan(from, count), made.experts.as<int32_t>().begin() + to);
    std::ranges::copy(record.weights.as<float>().subspan(from, count), made.weights.as<float>().begin() + to);
  }
  const std::span<const int32_t> all = std::as_const(made.experts).as<int32_t>();
  for (size_t row = 0; row < all.size(); row += static_cast<size_t>(chosen)) {
    const std::span<const int32_t> of_row = all.subspan(row, static_cast<size_t>(chosen));
    const bool ascending = std::ranges::adjacent_find(of_row, std::ranges::greater_equal()) == of_row.end();
    if (!ascending || of_row.front() < 0 || of_row.back() >= experts) {
      fail(ErrorKind::bad_input, kPlace, "layer {}: wanted ascending experts in [0, {}), found {}", layer, experts,
           fmt::join(of_row, ", "));
    }
  }
  return made;
}

}  // namespace weft
