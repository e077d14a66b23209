#pragma once

#include <chrono>
#include <functional>

#include "engine/bench/record.h"

namespace weft::bench {

// Seconds since construction.
class Timer {
 public:
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun_ = Clock::now();
};

// `amount` per second of a call, `repeats` times: each the mean over the calls that `least_seconds` have room for, after one
// call that does not count.
inline Samples rates(int repeats, double least_seconds, double amount, const std::function<void()>& call) {
  call();
  Samples samples;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const Timer timer;
    int64_t calls = 0;
    do {
      call();
      ++calls;
    } while (timer.seconds() < least_seconds);
    samples.push_back(amount * static_cast<double>(calls) / timer.seconds());
  }
  return samples;
}

}  // namespace weft::bench
