// An engine with a thread of its own, for callers in any thread (docs/engine.md, T).
//
//     EngineThread engine(executor, options);
//     const auto stream = std::make_shared<TokenStream>(16, [&] { engine.wake(); });
//     engine.submit({.ids = prompt}, stream);
//     while (std::optional<ops::Sampled> token = stream->next()) ...   // then stream->report()
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/engine.h"

namespace weft {

class EngineThread {
 public:
  // Errors: Engine. The executor outlives it, and nobody else calls it meanwhile.
  EngineThread(Executor& executor, const EngineOptions& options);
  ~EngineThread();  // stop()
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Waits until the engine has taken or refused the request, at most as long as a step takes. Errors: Engine::submit.
  RequestId submit(GenerateRequest request, std::shared_ptr<TokenSink> sink);
  void cancel(RequestId id);
  // Cancels what is left; every sink has had its on_end() when it returns. Later calls do nothing, and submit() throws
  // unavailable.
  void stop();
  // A sink has room again.
  void wake();
  // Calls `task` in the engine's thread between two steps. What it throws is dropped. False: the engine has stopped, and it is
  // not called.
  bool between_steps(std::function<void(Engine&)> task);

  // What the engine held after its last step.
  struct Figures {
    int64_t running = 0;
    int64_t queued = 0;
    double state_share = 0.0;  // of the memory for sequence states, stored ones included
  };
  [[nodiscard]] Figures figures() const;
  [[nodiscard]] int64_t context_limit() const { return context_limit_; }  // Engine::context_limit()
  // Why no request can be answered now: the engine broke, or its executor says so.
  [[nodiscard]] std::optional<Failure> trouble() const;

 private:
  bool post(std::function<void()> task);  // false: the thread has stopped
  void work();

  const Executor& executor_;
  Engine engine_;  // the thread's, once it runs
  const int64_t context_limit_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool awake_ = false;                       // guarded by mutex_: something happened since the last step
  bool stopping_ = false;                    // guarded by mutex_
  Figures figures_;                          // guarded by mutex_
  std::optional<Failure> broken_;            // guarded by mutex_
  std::thread thread_;
};

// A sink that holds at most `capacity` tokens until its reader takes them; while it is full its request rests.
class TokenStream final : public TokenSink {
 public:
  // `on_room` is called by the reader's thread when a full stream has room again: EngineThread::wake.
  TokenStream(size_t capacity, std::function<void()> on_room) : capacity_(capacity), on_room_(std::move(on_room)) {}

  // The next token; waits for it. Nothing: the request has ended.
  [[nodiscard]] std::optional<ops::Sampled> next();
  // Once next() has given nothing.
  [[nodiscard]] RequestReport report() const;

  [[nodiscard]] bool ready() override;
  [[nodiscard]] bool on_token(const ops::Sampled& token) override;
  void on_end(const RequestReport& report) override;

 private:
  size_t capacity_;
  std::function<void()> on_room_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<ops::Sampled> tokens_;      // guarded by mutex_
  std::optional<RequestReport> report_;  // guarded by mutex_
};

}  // namespace weft
