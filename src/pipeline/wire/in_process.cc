#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/guard.h"
#include "pipeline/wire/message_stream.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "in-process";

struct Direction {
  std::deque<ReceivedMessage> messages;
  bool finished = false;
};

// What both ends share; one lock for both directions.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  size_t capacity = 1;
  std::array<Direction, 2> directions;
  bool is_lost = false;
  std::string reason;

  void require_not_lost() const {
    if (is_lost) fail(ErrorKind::stage_lost, kPlace, "stream is lost: {}", reason);
  }
};

class End final : public MessageStream {
 public:
  End(std::shared_ptr<Shared> shared, size_t index)
      : shared_(std::move(shared)), out_(shared_->directions.at(index)), in_(shared_->directions.at(1 - index)) {}
  ~End() override { cancel("the other end is gone"); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void write(const EncodedMessage& message) override {
    auto memory = std::make_shared<Tensor>(Tensor::uninitialized(DType::u8, {message.bytes()}));
    const std::span<std::byte> bytes{memory->data(), static_cast<size_t>(memory->bytes())};
    message.copy_to(bytes);
    {
      std::unique_lock lock(shared_->mutex);
      const auto may_go_on = [&] { return shared_->is_lost || out_.finished || out_.messages.size() < shared_->capacity; };
      shared_->changed.wait(lock, may_go_on);
      shared_->require_not_lost();
      if (out_.finished) fail(ErrorKind::internal, kPlace, "write: wanted a stream that was not finished, found one that was");
      out_.messages.push_back({bytes, std::move(memory)});
    }
    shared_->changed.notify_all();
  }

  std::optional<ReceivedMessage> read() override {
    std::optional<ReceivedMessage> message;
    {
      std::unique_lock lock(shared_->mutex);
      shared_->changed.wait(lock, [&] { return shared_->is_lost || in_.finished || !in_.messages.empty(); });
      shared_->require_not_lost();
      if (in_.messages.empty()) return std::nullopt;
      message = std::move(in_.messages.front());
      in_.messages.pop_front();
    }
    shared_->changed.notify_all();
    return message;
  }

  void cancel(const std::string& reason) noexcept override {
    std::array<std::deque<ReceivedMessage>, 2> dropped;  // freed without the lock
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->is_lost || (in_.finished && out_.finished)) return;
      shared_->is_lost = true;
      // Without memory for it there is no reason, but no lost wake-up either.
      (void)guard([&] { shared_->reason = reason; });
      dropped[0].swap(in_.messages);
      dropped[1].swap(out_.messages);
    }
    shared_->changed.notify_all();
  }

  void finish() noexcept override {
    {
      const std::lock_guard lock(shared_->mutex);
      out_.finished = true;
    }
    shared_->changed.notify_all();
  }

  const std::string& peer() const override {
    static const std::string name(kPlace);
    return name;
  }

 private:
  std::shared_ptr<Shared> shared_;
  Direction& out_;
  Direction& in_;
};

}  // namespace

std::pair<std::unique_ptr<MessageStream>, std::unique_ptr<MessageStream>> in_process_streams(int64_t capacity) {
  if (capacity < 1) fail(ErrorKind::internal, kPlace, "capacity: wanted at least 1 message, found {}", capacity);
  auto shared = std::make_shared<Shared>();
  shared->capacity = static_cast<size_t>(capacity);
  return {std::make_unique<End>(shared, 0), std::make_unique<End>(shared, 1)};
}

}  // namespace weft
