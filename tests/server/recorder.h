// An exchange without a network: keeps what is written.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "server/http/exchange.h"

namespace weft::server_test {

class Recorder final : public http::Exchange {
 public:
  explicit Recorder(http::Request request) : request_(std::move(request)) {}

  [[nodiscard]] const http::Request& request() const override { return request_; }
  void respond(http::Response response) override {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    started_ = over_ = true;
    body_ = std::move(response.body);
    head_ = std::move(response);
    changed_.notify_all();
  }
  void start(http::Response head, http::StreamOptions options) override {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    started_ = true;
    stream_ = true;
    options_ = std::move(options);
    body_ = std::move(head.body);
    head_ = std::move(head);
    changed_.notify_all();
  }
  void write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (!stream_ || over_ || gone_) return;
    body_ += bytes;
    if (stop_when_ && stop_when_(body_)) full_ = true;
    changed_.notify_all();
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    over_ = true;
    on_gone_ = {};
    changed_.notify_all();
  }
  void note(std::string text) override {
    const std::lock_guard lock(mutex_);
    note_ = std::move(text);
  }
  [[nodiscard]] bool full() const override {
    const std::lock_guard lock(mutex_);
    return full_;
  }
  [[nodiscard]] bool gone() const override {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  void on_gone(std::function<void()> call) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        on_gone_ = std::move(call);
        return;
      }
    }
    call();
  }
  void on_room(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    on_room_ = std::move(call);
  }

  // What a client does.
  void leave() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      call = std::move(on_gone_);
    }
    if (call) call();
  }
  // It takes nothing more: from now on, or as soon as `when` holds of what was written.
  void stop_taking() {
    const std::lock_guard lock(mutex_);
    full_ = true;
  }
  void stop_taking_when(std::function<bool(const std::string& body)> when) {
    const std::lock_guard lock(mutex_);
    stop_when_ = std::move(when);
  }
  void take_again() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      stop_when_ = {};
      full_ = false;
      call = on_room_;
    }
    if (call) call();
  }

  // Waits until `test` holds of the body so far; false after a minute.
  template <class Test>
  bool wait_for(Test test) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return test(body_); });
  }
  bool wait_until_over() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return over_; });
  }

  bool wait_until_full() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return full_; });
  }

  // What has been written so far.
  [[nodiscard]] std::string body() const {
    const std::lock_guard lock(mutex_);
    return body_;
  }
  [[nodiscard]] bool answered() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }
  // Once it is over.
  [[nodiscard]] int status() const { return head_.status; }
  [[nodiscard]] const http::Response& head() const { return head_; }
  [[nodiscard]] bool streamed() const { return stream_; }
  [[nodiscard]] const std::string& noted() const { return note_; }

 private:
  http::Request request_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  http::Response head_;
  http::StreamOptions options_;
  std::string body_;
  std::string note_;
  std::function<bool(const std::string& body)> stop_when_;
  bool started_ = false;
  bool stream_ = false;
  bool over_ = false;
  bool full_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_room_;
};

}  // namespace weft::server_test
