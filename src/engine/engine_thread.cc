#include "engine/engine_thread.h"

#include <chrono>
#include <future>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace weft {

EngineThread::EngineThread(Executor& executor, const EngineOptions& options)
    : executor_(executor), engine_(executor, options), context_limit_(engine_.context_limit()) {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    fail(ErrorKind::unavailable, "engine", "wanted a thread, found: {}", error.what());
  }
}

EngineThread::~EngineThread() { stop(); }

void EngineThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool EngineThread::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

RequestId EngineThread::submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  RequestId id;
  std::promise<std::optional<Failure>> taken;
  if (!post([&] { taken.set_value(guard([&] { id = engine_.submit(std::move(request), std::move(sink)); })); }))
    fail(ErrorKind::unavailable, "engine", "wanted an engine that runs, found one that has stopped");
  if (const std::optional<Failure> failure = taken.get_future().get()) failure->raise();
  return id;
}

void EngineThread::cancel(RequestId id) {
  post([this, id] { engine_.cancel(id); });
}

void EngineThread::wake() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
  }
  wake_.notify_one();
}

bool EngineThread::between_steps(std::function<void(Engine&)> task) {
  return post([this, task = std::move(task)] { task(engine_); });
}

std::optional<Failure> EngineThread::trouble() const {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return broken_;
  }
  return executor_.trouble();
}

EngineThread::Figures EngineThread::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

void EngineThread::work() {
  bool busy = false;
  for (;;) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      // Now and then although nothing happens: a request that rests has its time limit too.
      wake_.wait_for(lock, std::chrono::seconds(1), [&] { return busy || awake_ || stopping_ || !tasks_.empty(); });
      if (stopping_ && tasks_.empty()) break;
      awake_ = false;
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) static_cast<void>(guard(task));
    busy = engine_.step();
    {
      const std::lock_guard lock(mutex_);
      broken_ = engine_.broken();
      figures_ = {engine_.running(), engine_.queued(), engine_.state_share()};
    }
  }
  static_cast<void>(guard([&] { engine_.cancel_all(); }));
}

std::optional<ops::Sampled> TokenStream::next() {
  std::optional<ops::Sampled> token;
  bool was_full = false;
  {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return report_ || !tokens_.empty(); });
    if (tokens_.empty()) return std::nullopt;
    was_full = tokens_.size() >= capacity_;
    token = tokens_.front();
    tokens_.pop_front();
  }
  if (was_full) on_room_();
  return token;
}

RequestReport TokenStream::report() const {
  const std::lock_guard lock(mutex_);
  if (!report_) fail(ErrorKind::internal, "token stream", "wanted a request that has ended, found one that goes on");
  return *report_;
}

bool TokenStream::ready() {
  const std::lock_guard lock(mutex_);
  return tokens_.size() < capacity_;
}

bool TokenStream::on_token(const ops::Sampled& token) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(token);
  }
  arrived_.notify_one();
  return false;
}

void TokenStream::on_end(const RequestReport& report) {
  {
    const std::lock_guard lock(mutex_);
    report_ = report;
  }
  arrived_.notify_one();
}

}  // namespace weft
