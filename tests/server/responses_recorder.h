// An exchange without sockets, which records what is written.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/exchange.h"

namespace weft::api_test {

class Recorder final : public http::Exchange {
 public:
  explicit Recorder(http::Request request) : request_(std::move(request)) {}

  // As soon as the test's condition on what was written holds, the client takes nothing more until open_up().
  void stop_taking_when(std::function<bool(const std::string& body)> when) {
    const std::lock_guard lock(mutex_);
    stop_when_ = std::move(when);
  }
  void open_up() {
    std::function<void()> room;
    {
      const std::lock_guard lock(mutex_);
      stop_when_ = {};
      full_ = false;
      room = on_room_;
    }
    if (room) room();
  }
  void leave() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      call = std::exchange(on_gone_, {});
    }
    if (call) call();
  }

  // The head with the whole body. Throws when there is none within a minute.
  http::Response wait() {
    wait_for([&] { return finished_; });
    const std::lock_guard lock(mutex_);
    http::Response whole = *head_;
    whole.body = body_;
    return whole;
  }
  void wait_until_full() {
    wait_for([&] { return full_; });
  }
  [[nodiscard]] bool answered() const {
    const std::lock_guard lock(mutex_);
    return head_.has_value();
  }
  [[nodiscard]] std::string body() const {
    const std::lock_guard lock(mutex_);
    return body_;
  }
  [[nodiscard]] std::string notes() const {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

  [[nodiscard]] const http::Request& request() const override { return request_; }
  void respond(http::Response response) override {
    start(std::move(response), {});
    finish();
  }
  void start(http::Response head, http::StreamOptions options) override {
    static_cast<void>(options);
    const std::lock_guard lock(mutex_);
    if (head_) return;
    body_ = std::exchange(head.body, {});
    head_ = std::move(head);
  }
  void write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (finished_ || gone_) return;
    body_ += bytes;
    if (stop_when_ && stop_when_(body_)) full_ = true;
    changed_.notify_all();
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    on_gone_ = {};
    changed_.notify_all();
  }
  void note(std::string text) override {
    const std::lock_guard lock(mutex_);
    notes_ += text;
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
      if (!gone_) on_gone_ = std::exchange(call, {});
    }
    if (call) call();
  }
  void on_room(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    on_room_ = std::move(call);
  }

 private:
  template <class Condition>
  void wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::minutes(1), condition))
      throw std::runtime_error("recorder: still waiting after a minute; written so far: " + body_);
  }

  http::Request request_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<http::Response> head_;
  std::string body_;
  std::string notes_;
  bool finished_ = false;
  bool full_ = false;
  bool gone_ = false;
  std::function<bool(const std::string&)> stop_when_;
  std::function<void()> on_gone_;
  std::function<void()> on_room_;
};

}  // namespace weft::api_test
