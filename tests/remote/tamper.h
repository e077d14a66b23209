// A stream that changes frames on their way.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/wire/frame.h"
#include "pipeline/wire/message_stream.h"

namespace weft::remote_test {

// What becomes of a frame that is written: the frame as `change` leaves it; not sent at all when it returns false.
using ChangeFrame = std::function<bool(Frame& frame)>;
// What becomes of the bytes of a message that is written.
using ChangeBytes = std::function<void(std::vector<std::byte>& bytes)>;

class TamperStream final : public MessageStream {
 public:
  TamperStream(std::unique_ptr<MessageStream> inner, FrameLimits limits, ChangeFrame frame, ChangeBytes bytes = nullptr)
      : inner_(std::move(inner)), limits_(limits), decoder_(limits), frame_(std::move(frame)), bytes_(std::move(bytes)) {}

  void write(const EncodedMessage& message) override {
    auto whole = std::make_shared<std::vector<std::byte>>(message.head);
    for (const FrameTensor& part : message.parts)
      whole->insert(whole->end(), part.view.data, part.view.data + part.view.bytes());
    if (bytes_) {
      bytes_(*whole);
      return inner_->write({*whole, {}});
    }
    std::optional<Frame> frame = decoder_.add(*whole, whole);
    if (!frame || !frame_(*frame)) return;
    for (const EncodedMessage& changed : encode_frame(*frame, limits_, Checksum::on)) inner_->write(changed);
  }
  [[nodiscard]] std::optional<ReceivedMessage> read() override { return inner_->read(); }
  void cancel(const std::string& reason) noexcept override { inner_->cancel(reason); }
  void finish() noexcept override { inner_->finish(); }
  [[nodiscard]] const std::string& peer() const override { return inner_->peer(); }

 private:
  std::unique_ptr<MessageStream> inner_;
  FrameLimits limits_;
  FrameDecoder decoder_;
  ChangeFrame frame_;
  ChangeBytes bytes_;
};

}  // namespace weft::remote_test
