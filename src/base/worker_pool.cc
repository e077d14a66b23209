#include "base/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "base/guard.h"

namespace weft {
namespace {

constexpr int kSpins = 1000;  // of about 40 cycles: some ten microseconds, about what a wake-up takes

// The tasks of one thread: neighbours, so that what it reads ahead of one task is read in the next.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

// One parallel_for call. Threads take the tasks of their own share in order, then what others have left.
struct Job {
  int64_t count = 0;
  int64_t grain = 1;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::span<Share> shares;
  std::mutex mutex;
  std::optional<Failure> failure;  // guarded by mutex

  void work(size_t own) {
    for (size_t i = 0; i < shares.size(); ++i) {
      Share& share = shares[(own + i) % shares.size()];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t task = share.next.fetch_add(1, std::memory_order_relaxed);
        if (task < share.end) run(task);
      }
    }
  }

 private:
  void run(int64_t task) {
    const int64_t begin = task * grain;
    const std::optional<Failure> thrown = guard([&] { (*body)(begin, std::min(begin + grain, count)); });
    if (!thrown) return;
    const std::lock_guard lock(mutex);
    if (!failure) failure = thrown;
    for (Share& share : shares) share.next.store(share.end, std::memory_order_relaxed);
  }
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when `value` is no longer `old`: looks for a while, then sleeps until it is notified.
void wait_while(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load() != old) return;
    pause();
  }
  value.wait(old);
}

}  // namespace

// Decode calls parallel_for about twenty times per layer, some for less work than the wake-up of a sleeping thread costs. So
// both sides look for each other for a short while before they sleep: a worker for the next job, the caller for the last
// worker.
struct WorkerPool::Impl {
  std::atomic<uint32_t> generation{0};  // counts jobs; workers sleep on it
  std::atomic<Job*> job{nullptr};
  std::atomic<uint32_t> inside{0};  // workers that may hold `job`; the caller sleeps on it
  std::atomic<bool> stopping{false};
  std::vector<Share> shares;  // of the current job, one for each thread
  std::vector<std::thread> workers;

  explicit Impl(size_t threads) : shares(threads) {}

  void announce() {
    generation.fetch_add(1);
    generation.notify_all();
  }

  void stop() {
    stopping.store(true);
    announce();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  // A worker enters before it reads `job`, and the caller clears `job` before it reads `inside` (both sequentially consistent):
  // a worker that has seen the job is waited for.
  void run_worker(size_t index) {
    uint32_t seen = 0;
    for (;;) {
      wait_while(generation, seen);
      if (stopping.load()) return;
      seen = generation.load();
      inside.fetch_add(1);
      if (Job* current = job.load()) current->work(index);
      if (inside.fetch_sub(1) == 1) inside.notify_one();
    }
  }

  void run(Job& current) {
    const int64_t tasks = (current.count + current.grain - 1) / current.grain;
    const auto threads = static_cast<int64_t>(shares.size());
    for (int64_t t = 0; t < threads; ++t) {
      Share& share = shares[static_cast<size_t>(t)];
      share.next.store(tasks * t / threads, std::memory_order_relaxed);
      share.end = tasks * (t + 1) / threads;
    }
    current.shares = shares;
    job.store(&current);
    announce();
    current.work(0);
    job.store(nullptr);
    for (uint32_t others = inside.load(); others != 0; others = inside.load()) wait_while(inside, others);
  }
};

WorkerPool::WorkerPool(int threads) {
  if (threads < 1) fail(ErrorKind::bad_input, "threads", "wanted at least 1 thread, found {}", threads);
  impl_ = std::make_unique<Impl>(static_cast<size_t>(threads));
  impl_->workers.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) {
    try {
      impl_->workers.emplace_back([impl = impl_.get(), index = static_cast<size_t>(i)] { impl->run_worker(index); });
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
  impl_->run(job);
  if (job.failure) job.failure->raise();
}

}  // namespace weft
