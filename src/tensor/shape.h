// The shape of a tensor: up to kMaxRank extents, row-major.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include <fmt/format.h>

namespace weft {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
    assert(extents.size() <= kMaxRank);
    for (int i = 0; i < rank_; ++i) extents_[static_cast<size_t>(i)] = extents[static_cast<size_t>(i)];
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](int axis) const {
    assert(axis >= 0 && axis < rank_);
    return extents_[static_cast<size_t>(axis)];
  }
  [[nodiscard]] int64_t last() const { return rank_ == 0 ? 1 : (*this)[rank_ - 1]; }
  [[nodiscard]] std::span<const int64_t> extents() const { return {extents_.data(), static_cast<size_t>(rank_)}; }

  // The product of the extents (1 for a scalar), or nothing when it or an extent does not fit int64.
  [[nodiscard]] std::optional<int64_t> checked_elements() const;
  [[nodiscard]] int64_t elements() const { return checked_elements().value(); }

  friend bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a.extents(), b.extents()); }

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

[[nodiscard]] std::string to_string(const Shape& shape);  // "[3072, 112]"

}  // namespace weft

template <>
struct fmt::formatter<weft::Shape> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const weft::Shape& shape, Context& context) const {
    return fmt::formatter<std::string_view>::format(weft::to_string(shape), context);
  }
};
