// The answer to one request, between the threads that write it and the connection that sends it. Knows nothing of sockets.
//
//     auto answer = std::make_shared<Answer>(std::move(request), [=] { ...the connection looks at take() soon... });
//     handler.handle(open_exchange(answer));                  // any threads: respond(), start(), write(), finish()
//     const Answer::Piece piece = answer->take(64 << 10);     // the connection's strand
//     ...                                                     // sends it
//     answer->sent(piece.bytes.size());
//     answer->complete();                                     // or leave(): the client is gone
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/exchange.h"

namespace weft::http {

using Clock = std::chrono::steady_clock;

// Bytes of request bodies in memory, counted in one place for all connections.
class BodyBytes {
 public:
  explicit BodyBytes(std::shared_ptr<std::atomic<int64_t>> all) : all_(std::move(all)) {}
  ~BodyBytes() {
    if (all_ != nullptr) *all_ -= bytes_;
  }
  BodyBytes(BodyBytes&& other) noexcept = default;
  BodyBytes& operator=(BodyBytes&& other) = delete;
  BodyBytes(const BodyBytes&) = delete;
  BodyBytes& operator=(const BodyBytes&) = delete;

  // False, and nothing is added, when all bodies together would be more than `most`.
  [[nodiscard]] bool add(int64_t bytes, int64_t most) {
    if (all_->fetch_add(bytes) + bytes > most) {
      *all_ -= bytes;
      return false;
    }
    bytes_ += bytes;
    return true;
  }

 private:
  std::shared_ptr<std::atomic<int64_t>> all_;  // outlives the server: an exchange may
  int64_t bytes_ = 0;
};

class Answer {
 public:
  // `wake` is called from any thread, under a mutex, when take() has news; not after complete() or leave().
  Answer(Request request, BodyBytes body_bytes, std::function<void()> wake);

  // The members of Exchange.
  [[nodiscard]] const Request& request() const { return request_; }
  void respond(Response response);
  void start(Response head, StreamOptions options);
  void write(std::string_view bytes);
  void finish();
  void note(std::string text);
  [[nodiscard]] bool full() const;
  [[nodiscard]] bool gone() const;
  void on_gone(std::function<void()> call);
  void on_room(std::function<void()> call);

  // No more will come from the handler: it let go of the exchange, or failed.
  void abandon();

  // What the connection is to send next.
  struct Piece {
    std::optional<Response> head;  // without its body; once
    bool whole = false;            // the head is that of respond(): all of the body is in `bytes`
    std::string bytes;             // of the body
    bool last = false;             // nothing comes behind it
    bool broken = false;           // likewise, and the answer is not complete
    bool missing = false;          // abandoned without an answer
  };
  [[nodiscard]] Piece take(size_t most);
  [[nodiscard]] std::string noted() const;
  void sent(int64_t bytes);  // of what was taken: the client has them
  // Since when the client is expected to take what waits: the exchange is full, or all of the answer is there.
  [[nodiscard]] std::optional<Clock::time_point> pressed_since() const;
  [[nodiscard]] const StreamOptions& options() const { return options_; }  // once take() gave the head

  // The end, once: the answer has been sent, or the client is gone.
  void complete();
  void leave();

 private:
  enum class State { waiting, whole, streaming };

  void wake_locked();
  void add_locked(std::string_view bytes);
  [[nodiscard]] bool takes_locked() const { return !closed_ && !ended_; }

  const Request request_;
  const BodyBytes body_bytes_;
  mutable std::mutex mutex_;  // guards all that follows
  std::function<void()> wake_;
  std::function<void()> on_gone_;
  std::function<void()> on_room_;
  State state_ = State::waiting;
  std::optional<Response> head_;
  StreamOptions options_;
  std::string note_;
  std::string waiting_;  // not taken yet
  size_t taken_ = 0;     // bytes at the front of waiting_ that were
  int64_t unsent_ = 0;   // waiting, or taken and not sent
  bool full_ = false;
  bool ended_ = false;  // all of the answer is there, or nothing more comes
  bool broken_ = false;
  bool missing_ = false;
  bool woken_ = false;   // since the last take()
  bool closed_ = false;  // complete or gone
  bool gone_ = false;
  std::optional<Clock::time_point> pressed_since_;
};

// A way for a handler to write `answer`. When it is let go, so is the answer (abandon()).
[[nodiscard]] std::shared_ptr<Exchange> open_exchange(std::shared_ptr<Answer> answer);

// Runs what belongs to the program; an exception is logged and goes no further.
void call_out(std::string_view what, const std::function<void()>& call) noexcept;

}  // namespace weft::http
