// Counts and indices that must not be mixed up are distinct types.
//
//     TokenCount consumed{5};
//     LayerIndex layer{5};
//     consumed == layer;   // does not compile
#pragma once

#include <compare>
#include <cstdint>

#include <fmt/format.h>

namespace weft {

template <class Tag>
struct Strong {
  int64_t value = 0;

  constexpr Strong() = default;
  constexpr explicit Strong(int64_t v) : value(v) {}

  friend constexpr auto operator<=>(Strong, Strong) = default;
  friend constexpr Strong operator+(Strong a, Strong b) { return Strong(a.value + b.value); }
  friend constexpr Strong operator-(Strong a, Strong b) { return Strong(a.value - b.value); }
  constexpr Strong& operator+=(Strong other) {
    value += other.value;
    return *this;
  }
  constexpr Strong& operator-=(Strong other) {
    value -= other.value;
    return *this;
  }
  constexpr Strong& operator++() {
    ++value;
    return *this;
  }
};

using TokenCount = Strong<struct TokenCountTag>;  // tokens, or a position in a sequence
using ByteCount = Strong<struct ByteCountTag>;    // bytes
using LayerIndex = Strong<struct LayerIndexTag>;  // global layer, 0-based
using SlotId = Strong<struct SlotIdTag>;          // slot of a StatePool
using PageId = Strong<struct PageIdTag>;          // page of a StatePool

// Layers [begin, end) of a model.
struct LayerRange {
  LayerIndex begin;
  LayerIndex end;

  [[nodiscard]] constexpr int64_t size() const { return end.value - begin.value; }
  [[nodiscard]] constexpr bool contains(LayerIndex layer) const { return begin <= layer && layer < end; }
  friend constexpr bool operator==(LayerRange, LayerRange) = default;
};

// "1,560,936,091,448"
[[nodiscard]] std::string with_commas(int64_t value);
// "1.45 TiB", "512 B"
[[nodiscard]] std::string human_bytes(int64_t bytes);

}  // namespace weft

template <class Tag>
struct fmt::formatter<weft::Strong<Tag>> : fmt::formatter<int64_t> {
  template <class Context>
  auto format(weft::Strong<Tag> strong, Context& context) const {
    return fmt::formatter<int64_t>::format(strong.value, context);
  }
};
