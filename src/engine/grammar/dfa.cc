#include "engine/grammar/dfa.h"

#include <algorithm>

namespace weft::grammar {

Dfa::Dfa(std::vector<Row> rows, std::vector<bool> accepting) : rows_(std::move(rows)), distance_(rows_.size(), kNever) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (accepting[i]) distance_[i] = 0;
  }
  measure();
  for (Row& row : rows_) {
    for (int32_t& next : row) {
      if (next >= 0 && distance_[static_cast<size_t>(next)] == kNever) next = -1;
    }
  }
}

// Breadth first over the reversed transitions.
void Dfa::measure() {
  std::vector<std::vector<int32_t>> before(rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    int32_t last = -1;  // neighbouring bytes often go to one state
    for (const int32_t next : rows_[i]) {
      if (next >= 0 && next != last) before[static_cast<size_t>(next)].push_back(static_cast<int32_t>(i));
      last = next;
    }
  }
  std::vector<int32_t> queue;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (distance_[i] == 0) queue.push_back(static_cast<int32_t>(i));
  }
  for (size_t at = 0; at < queue.size(); ++at) {
    const auto state = static_cast<size_t>(queue[at]);
    for (const int32_t source : before[state]) {
      int32_t& distance = distance_[static_cast<size_t>(source)];
      if (distance != kNever) continue;
      distance = distance_[state] + 1;
      queue.push_back(source);
    }
  }
}

uint8_t Dfa::shortest_byte(int32_t state) const {
  return printable_byte([&](size_t byte) {
    const int32_t after = next(state, static_cast<uint8_t>(byte));
    return after >= 0 && distance(after) == distance(state) - 1;
  });
}

}  // namespace weft::grammar
