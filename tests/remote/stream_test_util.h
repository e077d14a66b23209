// What tests of message streams share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/wire/message_stream.h"
#include "tensor/tensor.h"

namespace weft::remote_test {

inline EncodedMessage message_of(const std::string& text) {
  EncodedMessage message;
  message.head.resize(text.size());
  if (!text.empty()) std::memcpy(message.head.data(), text.data(), text.size());
  return message;
}

inline std::string text_of(const ReceivedMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

// `count` bytes that differ from one place to the next, and from seed to seed.
inline std::string pattern(size_t count, uint32_t seed) {
  std::string bytes(count, '\0');
  uint32_t state = seed * 2654435761U + 1U;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24U);
  }
  return bytes;
}

// A part of a message that looks at `bytes`.
inline FrameTensor part_of(const std::shared_ptr<const std::string>& bytes, size_t first, size_t count) {
  FrameTensor part;
  part.view = {DType::u8, Shape{static_cast<int64_t>(count)}, reinterpret_cast<const std::byte*>(bytes->data()) + first};
  part.owner = bytes;
  return part;
}

// Sends back what comes, until the other end has finished.
inline void echo(const GrpcPeer& /*peer*/, std::unique_ptr<MessageStream> stream) {
  while (const auto message = stream->read()) stream->write(message_of(text_of(*message)));
  stream->finish();
}

// What `body` throws; a failure of the test when it throws nothing.
template <class Body>
Failure failure_of(Body&& body) {
  const auto failure = guard(std::forward<Body>(body));
  if (!failure) ADD_FAILURE() << "wanted an exception";
  return failure.value_or(Failure{});
}

// A value that one thread gives and another waits for, with a deadline.
template <class T>
class Awaited {
 public:
  void give(T value) { promise_.set_value(std::move(value)); }
  [[nodiscard]] T take() {
    if (future_.wait_for(std::chrono::seconds(60)) != std::future_status::ready)
      fail(ErrorKind::internal, "test", "nothing came");
    return future_.get();
  }

 private:
  std::promise<T> promise_;
  std::future<T> future_ = promise_.get_future();
};

}  // namespace weft::remote_test
