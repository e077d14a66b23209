// The tables of one step (ids, rows, segments, block tables) in the memory of the stage's device: one buffer, written by one
// copy. Equal sizes give equal addresses, so that recorded work finds the tables of the next step where it found those of the
// first.
//
//     buffer.begin(total bytes);
//     std::span<const int32_t> ids = buffer.add(batch.ids).there;
//     buffer.send();   // before the first operator
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/device.h"

namespace weft {

template <class T>
struct StepTable {
  std::span<T> here;         // to fill, until send()
  std::span<const T> there;  // where operators find it
};

class StepBuffer {
 public:
  explicit StepBuffer(Device& device) : device_(device) {}

  // A new step of at most `bytes` in `tables` tables. The operators of the step before are done or in the queue.
  void begin(int64_t bytes, int64_t tables);
  template <class T>
  [[nodiscard]] StepTable<T> place(size_t count) {
    const int64_t at = advance(static_cast<int64_t>(count * sizeof(T)));
    return {{reinterpret_cast<T*>(here_.data() + at), count}, {reinterpret_cast<const T*>(memory_ + at), count}};
  }
  template <class T>
  std::span<const T> add(const std::vector<T>& values) {
    const StepTable<T> table = place<T>(values.size());
    std::ranges::copy(values, table.here.begin());
    return table.there;
  }
  void send();

  // Changes when the buffer had to grow: earlier addresses are void.
  [[nodiscard]] const std::byte* address() const { return memory_; }

 private:
  [[nodiscard]] int64_t advance(int64_t bytes);

  Device& device_;
  std::byte* memory_ = nullptr;  // of the device
  int64_t capacity_ = 0;
  std::vector<std::byte> here_;
  int64_t used_ = 0;
};

}  // namespace weft
