#include "base/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/guard.h"

namespace weft {
namespace {

// One parallel_for call. Workers take ranges from `next` until it passes `count`.
struct Job {
  int64_t count = 0;
  int64_t grain = 1;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::optional<Failure> failure;  // guarded by mutex

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      const std::optional<Failure> thrown = guard([&] { (*body)(begin, std::min(begin + grain, count)); });
      if (thrown) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = thrown;
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

}  // namespace

struct WorkerPool::Impl {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  Job* job = nullptr;       // guarded by mutex
  uint64_t generation = 0;  // guarded by mutex; counts jobs
  int busy = 0;             // guarded by mutex; workers inside the current job
  bool stopping = false;    // guarded by mutex
  std::vector<std::thread> workers;

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  void run_worker() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      if (job == nullptr) continue;
      Job* current = job;
      ++busy;
      lock.unlock();
      current->work();
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

WorkerPool::WorkerPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads < 1) fail(ErrorKind::bad_input, "threads", "wanted at least 1 thread, found {}", threads);
  impl_->workers.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    try {
      impl_->workers.emplace_back([impl = impl_.get()] { impl->run_worker(); });
    } catch (const std::system_error& error) {
      impl_->stop();
      fail(ErrorKind::unavailable, "threads", "wanted {} threads, found that the system starts only {}: {}", threads, i,
           error.what());
    }
  }
}

WorkerPool::~WorkerPool() { impl_->stop(); }

int WorkerPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void WorkerPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (impl_->workers.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count));
    return;
  }
  Job job;
  job.count = count;
  job.grain = grain;
  job.body = &body;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->job = &job;
    ++impl_->generation;
  }
  impl_->wake.notify_all();
  job.work();
  {
    std::unique_lock lock(impl_->mutex);
    impl_->job = nullptr;
    impl_->done.wait(lock, [&] { return impl_->busy == 0; });
  }
  if (job.failure) job.failure->raise();
}

}  // namespace weft
