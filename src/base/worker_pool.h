// A fork-join pool of threads. The caller's thread works too, so `threads` = 1 starts none.
//
// Results never depend on the number of threads: work is split over outputs only, never inside a sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft {

class WorkerPool {
 public:
  explicit WorkerPool(int threads);  // >= 1
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int threads() const;

  // Calls body(begin, end) on disjoint ranges of at most `grain` items that cover [0, count), and returns when all are done.
  // The first exception of any call is rethrown here after all calls have ended. Not reentrant: one caller at a time.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
