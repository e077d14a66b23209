// The faults of all links of a network, and the order in which they let things pass. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "net/network.h"

namespace weft::net_test {

class Links {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Links(const LinkFaults& faults) : usual_(faults) {}

  void set(int a, int b, const LinkFaults& faults) {
    const std::lock_guard lock(mutex_);
    faults_[std::minmax(a, b)] = faults;
  }
  [[nodiscard]] bool is_cut(int from, int to) const {
    const std::lock_guard lock(mutex_);
    return of(from, to).is_cut;
  }
  // When something that comes now arrives; nothing: it is lost. Of one direction, what comes later arrives later.
  [[nodiscard]] std::optional<Clock::time_point> pass(int from, int to) {
    const std::lock_guard lock(mutex_);
    const LinkFaults& faults = of(from, to);
    if (faults.is_cut) {
      ++counters_.cut;
      return std::nullopt;
    }
    if (chance_(random_) < faults.loss) {
      ++counters_.lost;
      return std::nullopt;
    }
    ++counters_.carried;
    return arrival(from, to, faults.delay);
  }
  // The same of what cannot be lost: a loss takes `penalty` seconds instead.
  [[nodiscard]] Clock::time_point pass_late(int from, int to, double penalty) {
    const std::lock_guard lock(mutex_);
    const LinkFaults& faults = of(from, to);
    const bool is_late = chance_(random_) < faults.loss;
    ++(is_late ? counters_.lost : counters_.carried);
    return arrival(from, to, faults.delay + (is_late ? penalty : 0.0));
  }
  // Something on its way meets a cut.
  void count_cut() {
    const std::lock_guard lock(mutex_);
    --counters_.carried;
    ++counters_.cut;
  }
  [[nodiscard]] NetworkCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  static constexpr LinkFaults kSameHost{.delay = 0.0, .loss = 0.0, .is_cut = false};

  [[nodiscard]] const LinkFaults& of(int from, int to) const {
    if (from == to) return kSameHost;
    const auto found = faults_.find(std::minmax(from, to));
    return found == faults_.end() ? usual_ : found->second;
  }
  [[nodiscard]] Clock::time_point arrival(int from, int to, double delay) {
    Clock::time_point& last = last_[{from, to}];
    last = std::max(last, Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay)));
    return last;
  }

  const LinkFaults usual_;
  mutable std::mutex mutex_;
  std::map<std::pair<int, int>, LinkFaults> faults_;         // guarded by mutex_
  std::map<std::pair<int, int>, Clock::time_point> last_;    // guarded by mutex_
  std::mt19937_64 random_{20260};                            // guarded by mutex_; a fixed seed: the same losses in every run
  std::uniform_real_distribution<double> chance_{0.0, 1.0};  // guarded by mutex_
  NetworkCounters counters_;                                 // guarded by mutex_
};

}  // namespace weft::net_test
