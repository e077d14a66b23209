// A handler whose parts a test gives, and what tests wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/http/exchange.h"
#include "server/http/server.h"
#include "server/http_certificate.h"
#include "server/http_client.h"

namespace weft::http_test {

// A flag that one thread raises and others wait for.
class Flag {
 public:
  void raise() {
    const std::lock_guard lock(mutex_);
    ++raised_;
    changed_.notify_all();
  }
  // False: it was not raised so often in kPatience seconds.
  [[nodiscard]] bool wait(int times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(kPatience), [&] { return raised_ >= times; });
  }
  [[nodiscard]] int raised() {
    const std::lock_guard lock(mutex_);
    return raised_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int raised_ = 0;
};

// A function that a test may replace while threads call it.
template <class Signature>
class Replaceable {
 public:
  Replaceable& operator=(std::function<Signature> body) {
    const std::lock_guard lock(mutex_);
    body_ = std::move(body);
    return *this;
  }
  [[nodiscard]] std::function<Signature> get() {
    const std::lock_guard lock(mutex_);
    return body_;
  }

 private:
  std::mutex mutex_;
  std::function<Signature> body_;
};

class TestHandler : public http::Handler {
 public:
  TestHandler() {
    on_admit = [](const http::Request&) { return std::nullopt; };
    on_handle = [](const std::shared_ptr<http::Exchange>& exchange) {
      const http::Request& request = exchange->request();
      exchange->respond({.status = 200, .headers = {}, .body = request.method + " " + request.path});
    };
    on_refuse = [] {};
  }

  Replaceable<std::optional<http::Response>(const http::Request&)> on_admit;
  Replaceable<void(const std::shared_ptr<http::Exchange>&)> on_handle;
  Replaceable<void()> on_refuse;
  std::atomic<int64_t> most_body = 1 << 20;

  [[nodiscard]] std::optional<http::Response> admit(const http::Request& head) override { return on_admit.get()(head); }
  [[nodiscard]] int64_t body_limit(const http::Request&) override { return most_body; }
  void handle(std::shared_ptr<http::Exchange> exchange) override { on_handle.get()(exchange); }
  [[nodiscard]] http::Response refuse(int status, std::string_view reason) override {
    on_refuse.get()();
    return {.status = status, .headers = {{"X-Refused", "yes"}}, .body = "refused: " + std::string(reason)};
  }
  void finished(const http::Finished& request) override {
    const std::lock_guard lock(mutex_);
    finished_.push_back(request);
    changed_.notify_all();
  }

  // The first `count` requests that have ended, once so many have.
  std::vector<http::Finished> wait_finished(size_t count) {
    std::unique_lock lock(mutex_);
    const bool enough = changed_.wait_for(lock, std::chrono::seconds(kPatience), [&] { return finished_.size() >= count; });
    if (!enough) throw std::runtime_error("test: wanted more requests to end");
    return {finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  size_t finished_count() {
    const std::lock_guard lock(mutex_);
    return finished_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<http::Finished> finished_;
};

inline http::ServerOptions test_options() {
  http::ServerOptions options;
  options.port = 0;
  return options;
}

// Waits until `holds`; used where only the server knows when, as for the count of its connections.
template <class Holds>
[[nodiscard]] bool eventually(Holds&& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kPatience);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::string get(const std::string& target = "/x", const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& body, const std::string& headers = "") {
  return "POST /x HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

// A server that speaks TCP or TLS, and its clients.
class Served {
 public:
  explicit Served(bool tls, http::ServerOptions options = test_options()) : tls_(tls), options_(std::move(options)) {
    if (tls) {
      const TestCertificate& certificate = TestCertificate::shared();
      options_.tls_certificate = certificate.certificate();
      options_.tls_key = certificate.key();
    }
  }
  TestHandler handler;

  // The first call starts it.
  http::Server& server() {
    if (server_ == nullptr) server_ = std::make_unique<http::Server>(options_, handler);
    return *server_;
  }
  std::unique_ptr<Client> client() {
    const uint16_t port = server().port();
    if (tls_) return std::make_unique<TlsClient>(port);
    return std::make_unique<Client>(port);
  }
  std::unique_ptr<Client> client(const std::string& first_bytes) {
    std::unique_ptr<Client> made = client();
    made->send(first_bytes);
    return made;
  }

 private:
  const bool tls_;
  http::ServerOptions options_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace weft::http_test
