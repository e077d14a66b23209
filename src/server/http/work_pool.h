// A few threads that run tasks in the order in which they were posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::http {

class WorkPool {
 public:
  explicit WorkPool(int threads);  // >= 1; throws unavailable when the system gives none
  ~WorkPool();                     // stop()
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  void post(std::function<void()> task);  // must not throw; dropped after stop()
  void stop();                            // ends what runs, drops what waits

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace weft::http
