#include "server/http/answer.h"

#include <algorithm>
#include <utility>

#include "base/guard.h"
#include "base/log.h"

namespace weft::http {

void call_out(std::string_view what, const std::function<void()>& call) noexcept {
  if (!call) return;
  if (const auto failure = guard(call)) (void)guard([&] { log::warning("http: {}: {}", what, failure->message); });
}

Answer::Answer(Request request, BodyBytes body_bytes, std::function<void()> wake)
    : request_(std::move(request)), body_bytes_(std::move(body_bytes)), wake_(std::move(wake)) {}

void Answer::wake_locked() {
  if (woken_ || !wake_) return;
  woken_ = true;
  if (guard(wake_)) woken_ = false;  // out of memory: the next news tries again
}

void Answer::add_locked(std::string_view bytes) {
  if (taken_ > waiting_.size() / 2) {
    waiting_.erase(0, taken_);
    taken_ = 0;
  }
  waiting_.append(bytes);
  unsent_ += static_cast<int64_t>(bytes.size());
  if (!full_ && unsent_ > options_.most_waiting) {
    full_ = true;
    pressed_since_ = Clock::now();
    woken_ = false;  // news even for a connection that is busy sending: the time of a stalled client runs
  }
}

void Answer::respond(Response response) {
  const std::lock_guard lock(mutex_);
  if (!takes_locked() || state_ != State::waiting) return;
  state_ = State::whole;
  waiting_ = std::move(response.body);
  unsent_ = static_cast<int64_t>(waiting_.size());
  response.body.clear();
  head_ = std::move(response);
  ended_ = true;
  pressed_since_ = Clock::now();
  wake_locked();
}

void Answer::start(Response head, StreamOptions options) {
  const std::lock_guard lock(mutex_);
  if (!takes_locked() || state_ != State::waiting) return;
  state_ = State::streaming;
  options_ = std::move(options);
  const std::string first = std::move(head.body);
  head.body.clear();
  head_ = std::move(head);
  add_locked(first);
  wake_locked();
}

void Answer::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (!takes_locked() || state_ != State::streaming || bytes.empty()) return;
  add_locked(bytes);
  wake_locked();
}

void Answer::finish() {
  const std::lock_guard lock(mutex_);
  if (!takes_locked() || state_ != State::streaming) return;
  ended_ = true;
  if (!pressed_since_) pressed_since_ = Clock::now();
  woken_ = false;
  wake_locked();
}

void Answer::note(std::string text) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
}

std::string Answer::noted() const {
  const std::lock_guard lock(mutex_);
  return note_;
}

void Answer::abandon() {
  const std::lock_guard lock(mutex_);
  if (!takes_locked()) return;
  (state_ == State::waiting ? missing_ : broken_) = true;
  ended_ = true;
  if (!pressed_since_) pressed_since_ = Clock::now();
  woken_ = false;
  wake_locked();
}

bool Answer::full() const {
  const std::lock_guard lock(mutex_);
  return full_ && !closed_;
}

bool Answer::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void Answer::on_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      std::swap(on_gone_, call);
      return;  // what it replaces is destroyed behind the mutex
    }
    if (!gone_) return;
  }
  call_out("on_gone", call);
}

void Answer::on_room(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  if (!closed_) std::swap(on_room_, call);
}

Answer::Piece Answer::take(size_t most) {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  Piece piece;
  if (head_) {
    piece.head = std::exchange(head_, std::nullopt);
    piece.whole = state_ == State::whole;
  }
  if (state_ == State::whole) {
    piece.bytes = std::exchange(waiting_, {});
  } else if (taken_ < waiting_.size()) {
    piece.bytes = waiting_.substr(taken_, most);
    taken_ += piece.bytes.size();
  }
  if (taken_ >= waiting_.size()) {
    std::string().swap(waiting_);  // gives its memory back
    taken_ = 0;
    piece.last = ended_;
    piece.broken = broken_;
    piece.missing = missing_;
  }
  return piece;
}

void Answer::sent(int64_t bytes) {
  std::function<void()> room;
  {
    const std::lock_guard lock(mutex_);
    unsent_ -= std::min(bytes, unsent_);
    if (!full_ || unsent_ > options_.most_waiting / 2) return;
    full_ = false;
    if (ended_) return;
    pressed_since_.reset();
    room = on_room_;
  }
  call_out("on_room", room);
}

std::optional<Clock::time_point> Answer::pressed_since() const {
  const std::lock_guard lock(mutex_);
  return pressed_since_;
}

void Answer::complete() {
  // They may hold the exchange, whose end wants the mutex: destroyed behind it.
  std::function<void()> wake;
  std::function<void()> on_gone;
  std::function<void()> on_room;
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  std::swap(wake, wake_);
  std::swap(on_gone, on_gone_);
  std::swap(on_room, on_room_);
}

void Answer::leave() {
  std::function<void()> wake;
  std::function<void()> on_gone;
  std::function<void()> on_room;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    gone_ = true;
    std::string().swap(waiting_);
    taken_ = 0;
    std::swap(wake, wake_);
    std::swap(on_gone, on_gone_);
    std::swap(on_room, on_room_);
  }
  call_out("on_gone", on_gone);
}

namespace {

class OpenExchange : public Exchange {
 public:
  explicit OpenExchange(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
  ~OpenExchange() override { answer_->abandon(); }
  OpenExchange(const OpenExchange&) = delete;
  OpenExchange& operator=(const OpenExchange&) = delete;

  [[nodiscard]] const Request& request() const override { return answer_->request(); }
  void respond(Response response) override { answer_->respond(std::move(response)); }
  void start(Response head, StreamOptions options) override { answer_->start(std::move(head), std::move(options)); }
  void write(std::string_view bytes) override { answer_->write(bytes); }
  void finish() override { answer_->finish(); }
  void note(std::string text) override { answer_->note(std::move(text)); }
  [[nodiscard]] bool full() const override { return answer_->full(); }
  [[nodiscard]] bool gone() const override { return answer_->gone(); }
  void on_gone(std::function<void()> call) override { answer_->on_gone(std::move(call)); }
  void on_room(std::function<void()> call) override { answer_->on_room(std::move(call)); }

 private:
  std::shared_ptr<Answer> answer_;
};

}  // namespace

std::shared_ptr<Exchange> open_exchange(std::shared_ptr<Answer> answer) {
  return std::make_shared<OpenExchange>(std::move(answer));
}

}  // namespace weft::http
