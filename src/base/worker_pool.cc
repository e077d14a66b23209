#include "base/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <limits>
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

// What is left of one thread's part, in units: neighbours, so that what the thread reads ahead of one range is read in the
// next. Its owner takes from the front, others from the back.
class alignas(64) Share {
 public:
  void fill(uint32_t next, uint32_t end) { left_.store(packed(next, end), std::memory_order_relaxed); }
  void clear() { fill(0, 0); }

  // Half of what is left, at most `most` units; false if nothing is.
  bool take(uint32_t most, uint32_t* begin, uint32_t* end) {
    uint64_t left = left_.load(std::memory_order_relaxed);
    while (count(left) != 0) {
      *begin = next_of(left);
      *end = *begin + std::min(most, half(left));
      if (left_.compare_exchange_weak(left, packed(*end, end_of(left)), std::memory_order_relaxed)) return true;
    }
    return false;
  }

  // Moves the last half of what is left into `to`, which is empty; false if nothing is.
  bool give(Share& to) {
    uint64_t left = left_.load(std::memory_order_relaxed);
    while (count(left) != 0) {
      const uint32_t rest = end_of(left) - half(left);
      if (!left_.compare_exchange_weak(left, packed(next_of(left), rest), std::memory_order_relaxed)) continue;
      to.fill(rest, end_of(left));
      return true;
    }
    return false;
  }

 private:
  static uint64_t packed(uint32_t next, uint32_t end) { return uint64_t{end} << 32U | next; }
  static uint32_t next_of(uint64_t left) { return static_cast<uint32_t>(left); }
  static uint32_t end_of(uint64_t left) { return static_cast<uint32_t>(left >> 32U); }
  static uint32_t count(uint64_t left) { return end_of(left) - next_of(left); }
  static uint32_t half(uint64_t left) { return (count(left) + 1) / 2; }

  std::atomic<uint64_t> left_{0};
};

// One parallel_for call. Threads take what their own share has, then halves of what others have left.
struct Job {
  int64_t count = 0;
  int64_t unit = 1;   // items
  uint32_t most = 1;  // units of a range
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::span<Share> shares;
  std::mutex mutex;
  std::optional<Failure> failure;  // guarded by mutex

  void work(size_t own) {
    uint32_t begin = 0;
    uint32_t end = 0;
    do {
      while (shares[own].take(most, &begin, &end)) run(begin, end);
    } while (find_more(own));
  }

 private:
  bool find_more(size_t own) {
    for (size_t i = 1; i < shares.size(); ++i) {
      if (shares[(own + i) % shares.size()].give(shares[own])) return true;
    }
    return false;
  }

  void run(uint32_t begin, uint32_t end) {
    const std::optional<Failure> thrown = guard([&] { (*body)(begin* unit, std::min(end * unit, count)); });
    if (!thrown) return;
    const std::lock_guard lock(mutex);
    if (!failure) failure = thrown;
    for (Share& share : shares) share.clear();
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
    const int64_t units = (current.count + current.unit - 1) / current.unit;
    const auto threads = static_cast<int64_t>(shares.size());
    for (int64_t t = 0; t < threads; ++t) {
      shares[static_cast<size_t>(t)].fill(static_cast<uint32_t>(units * t / threads),
                                          static_cast<uint32_t>(units * (t + 1) / threads));
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
  parallel_for(count, {.most = grain, .unit = grain}, body);
}

void WorkerPool::parallel_for(int64_t count, TaskSizes sizes, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t unit = std::max<int64_t>(sizes.unit, 1);
  const int64_t units = std::max<int64_t>(sizes.most / unit, 1);  // of a range
  const int64_t most = units * unit;
  if (impl_->workers.empty() || count <= most) {
    for (int64_t begin = 0; begin < count; begin += most) body(begin, std::min(begin + most, count));
    return;
  }
  constexpr int64_t kMostUnits = std::numeric_limits<uint32_t>::max();
  if (count / unit >= kMostUnits)
    fail(ErrorKind::internal, "worker pool", "wanted fewer than {} units of work, found {}", kMostUnits, count / unit);
  Job job;
  job.count = count;
  job.unit = unit;
  job.most = static_cast<uint32_t>(units);
  job.body = &body;
  impl_->run(job);
  if (job.failure) job.failure->raise();
}

}  // namespace weft
