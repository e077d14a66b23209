// Sequences in pages, for the cases of attention.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ops/ops.h"

namespace weft::ops::suite {

// One sequence of the call: its rows and the pages that it may read.
struct Part {
  int64_t first_row = 0;
  int64_t row_count = 0;
  int64_t start = 0;
  [[nodiscard]] int64_t end() const { return start + row_count; }
  [[nodiscard]] int64_t pages() const { return (end() + kPageTokens - 1) / kPageTokens; }
};

// A sequence that begins, one that decodes, and one that continues beyond two blocks of 256 positions.
inline const std::vector<Part> kMixed = {{0, 5, 0}, {5, 1, 255}, {6, 40, 500}};

[[nodiscard]] inline std::string name_of(const std::vector<Part>& parts) {
  std::string name;
  for (const Part& part : parts) name += fmt::format("{}{} rows at {}", name.empty() ? "" : ", ", part.row_count, part.start);
  return name;
}

// All pages of all sequences lie in one operand, those of a sequence in descending order.
class Cache {
 public:
  Cache(int64_t row_size, std::vector<Part> parts) : page_size_(kPageTokens * row_size), parts_(std::move(parts)) {
    for (const Part& part : parts_) pages_ += part.pages();
  }
  [[nodiscard]] Shape shape() const { return {pages_, page_size_}; }
  [[nodiscard]] int64_t rows() const { return parts_.back().first_row + parts_.back().row_count; }
  [[nodiscard]] int64_t positions() const {
    int64_t count = 0;
    for (const Part& part : parts_) count += part.end();
    return count;
  }
  // Of a row and a position that it reads.
  [[nodiscard]] double pairs() const {
    double pairs = 0.0;
    for (const Part& part : parts_) {
      const auto count = static_cast<double>(part.row_count);
      pairs += count * (static_cast<double>(part.start) + (count + 1.0) / 2.0);
    }
    return pairs;
  }

  // Calls body with the segments of the pages at `data`.
  template <class Body>
  void with_segments(float* data, const Body& body) const {
    std::vector<float*> pages;
    for (int64_t page = pages_ - 1; page >= 0; --page) pages.push_back(data + page * page_size_);
    std::vector<PagedSegment> segments;
    size_t first = 0;
    for (const Part& part : parts_) {
      const auto count = static_cast<size_t>(part.pages());
      segments.push_back({part.first_row, part.row_count, part.start, std::span(pages).subspan(first, count)});
      first += count;
    }
    body(segments);
  }

 private:
  int64_t page_size_;
  int64_t pages_ = 0;
  std::vector<Part> parts_;
};

}  // namespace weft::ops::suite
