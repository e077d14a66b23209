#include "server/http/work_pool.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace weft::http {

WorkPool::WorkPool(int threads) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorKind::unavailable, "http", "wanted {} threads for requests, found: {}", threads, error.what());
  }
}

WorkPool::~WorkPool() { stop(); }

void WorkPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void WorkPool::stop() {
  std::deque<std::function<void()>> dropped;  // destroyed behind the mutex
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkPool::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace weft::http
