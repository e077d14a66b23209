#include "base/task_thread.h"

#include <system_error>

#include "base/error.h"

namespace weft {

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread([this] { work(); });
      } catch (const std::system_error& error) {
        fail(ErrorKind::unavailable, "task thread", "wanted a thread, found: {}", error.what());
      }
    }
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskThread::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();  // a packaged task throws nothing
  }
}

}  // namespace weft
