// Messages between two ends, in order, as a transport carries them: gRPC between processes, queues inside one.
//
// Contract: write() and read() block, and may each be called by one thread at a time; cancel() by any thread. After a failure
// or cancel() both throw stage_lost with the reason, the first one. Nothing waits for ever once cancel() was called. A stream
// is over in good order when both ends have finished; an end that goes before the other has finished loses the stream for it.
// write() after finish() is a mistake of the caller (internal).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/wire/frame.h"

namespace weft {

// One message that came: contiguous, and alive as long as `owner`.
struct ReceivedMessage {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

class MessageStream {
 public:
  virtual ~MessageStream() = default;  // cancels

  virtual void write(const EncodedMessage& message) = 0;
  // Nothing when the other end finished in good order.
  [[nodiscard]] virtual std::optional<ReceivedMessage> read() = 0;
  // Ends both directions at once; the other end sees a lost stream.
  virtual void cancel(const std::string& reason) noexcept = 0;
  // No more will be written; the other end's read() returns nothing after what was written.
  virtual void finish() noexcept = 0;
  // Whom the stream leads to, for messages: "10.0.0.12:19001", "in-process".
  [[nodiscard]] virtual const std::string& peer() const = 0;
};

// Two ends of a stream inside this process. Each direction holds at most `capacity` messages; write() waits for room.
[[nodiscard]] std::pair<std::unique_ptr<MessageStream>, std::unique_ptr<MessageStream>> in_process_streams(
    int64_t capacity = 64);

}  // namespace weft
