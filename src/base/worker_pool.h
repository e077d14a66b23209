// A fork-join pool of threads. The caller's thread works too, so `threads` = 1 starts none.
//
// Results never depend on the number of threads: work is split over outputs only, never inside a sum.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace weft {

// How work is cut into ranges. All are whole units, the last one of all excepted.
struct TaskSizes {
  int64_t most = 1;  // items of a range
  int64_t unit = 1;  // items
};

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

  // The same in ranges that become shorter towards the end, down to one unit, so that all threads end at about the same time. A
  // thread takes neighbouring ranges as long as it has any, and then half of what another one has left.
  void parallel_for(int64_t count, TaskSizes sizes, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
