// A thread that runs tasks one after the other, in the order in which they were posted; for work beside that of its owner.
//
//     TaskThread files;
//     std::future<int64_t> bytes = files.post([] { return write_it(); });   // get() throws what the task threw
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace weft {

class TaskThread {
 public:
  TaskThread() = default;
  ~TaskThread();  // what was posted is done first
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // From any thread. The first call starts the thread; throws unavailable when there is none to be had.
  template <class Body>
  [[nodiscard]] std::future<std::invoke_result_t<Body>> post(Body body) {
    const auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Body>()>>(std::move(body));
    std::future<std::invoke_result_t<Body>> result = task->get_future();
    add([task] { (*task)(); });
    return result;
  }

 private:
  void add(std::function<void()> task);
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;                       // guarded by mutex_ until it runs
};

}  // namespace weft
