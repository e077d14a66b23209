// Small frames and their bytes, for the tests of the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/wire/crc32c.h"
#include "pipeline/wire/frame.h"
#include "pipeline/wire/wire_layout.h"

namespace weft::wire_test {

// A tensor of `bytes`, which are shape and type enough of.
inline std::shared_ptr<const Tensor> tensor_of(DType dtype, const Shape& shape, std::span<const std::byte> bytes) {
  Tensor made = Tensor::uninitialized(dtype, shape);
  EXPECT_EQ(made.bytes(), static_cast<int64_t>(bytes.size()));
  std::copy(bytes.begin(), bytes.end(), made.data());
  return std::make_shared<const Tensor>(std::move(made));
}

template <class T>
std::shared_ptr<const Tensor> tensor_of(DType dtype, const Shape& shape, const std::vector<T>& values) {
  return tensor_of(dtype, shape, std::as_bytes(std::span<const T>(values)));
}

// A tensor whose bytes differ from one place to the next.
inline std::shared_ptr<const Tensor> pattern(DType dtype, const Shape& shape, uint32_t seed = 1) {
  Tensor made = Tensor::uninitialized(dtype, shape);
  uint32_t state = seed * 2654435761U + 12345U;
  for (int64_t i = 0; i < made.bytes(); ++i) {
    state = state * 1664525U + 1013904223U;
    made.data()[i] = static_cast<std::byte>(state >> 24U);
  }
  return std::make_shared<const Tensor>(std::move(made));
}

inline FrameTensor message_of(std::string text) {
  return FrameTensor::message(std::make_shared<const std::string>(std::move(text)));
}

inline std::span<const std::byte> bytes_of(const TensorView& view) { return {view.data, static_cast<size_t>(view.bytes())}; }

inline bool same_bytes(const TensorView& a, const TensorView& b) { return std::ranges::equal(bytes_of(a), bytes_of(b)); }

// A message as it would come from a transport, at an address that is a multiple of 64, plus `misalignment`.
struct Received {
  std::shared_ptr<const Tensor> memory;
  std::span<const std::byte> bytes;
};

inline Received received(std::span<const std::byte> bytes, int64_t misalignment = 0) {
  Tensor memory = Tensor::zeros(DType::u8, {static_cast<int64_t>(bytes.size()) + misalignment});
  std::copy(bytes.begin(), bytes.end(), memory.data() + misalignment);
  auto shared = std::make_shared<const Tensor>(std::move(memory));
  return {shared, {shared->view().data + misalignment, bytes.size()}};
}

inline std::vector<std::byte> bytes_of(const EncodedMessage& message) {
  std::vector<std::byte> bytes(static_cast<size_t>(message.bytes()));
  message.copy_to(bytes);
  return bytes;
}

inline std::vector<std::vector<std::byte>> encoded(const Frame& frame, const FrameLimits& limits = {},
                                                   Checksum checksum = Checksum::on,
                                                   Compression compression = Compression::none) {
  std::vector<std::vector<std::byte>> messages;
  for (const EncodedMessage& message : encode_frame(frame, limits, checksum, compression))
    messages.push_back(bytes_of(message));
  return messages;
}

// Adds a message as a transport would; its memory lives as long as the frame's tensors ask for.
inline std::optional<Frame> add(FrameDecoder& decoder, std::span<const std::byte> bytes, int64_t misalignment = 0) {
  const Received message = received(bytes, misalignment);
  return decoder.add(message.bytes, message.memory);
}

// What encoding and decoding make of a frame.
inline Frame passed(const Frame& frame, const FrameLimits& limits = {}, Checksum checksum = Checksum::on,
                    int64_t misalignment = 0, Compression compression = Compression::none) {
  FrameDecoder decoder(limits);
  std::optional<Frame> whole;
  for (const std::vector<std::byte>& message : encoded(frame, limits, checksum, compression)) {
    EXPECT_FALSE(whole.has_value());
    whole = add(decoder, message, misalignment);
  }
  EXPECT_TRUE(whole.has_value());
  EXPECT_FALSE(decoder.incomplete());
  return whole.value_or(Frame());
}

inline void expect_same(const Frame& found, const Frame& wanted) {
  EXPECT_EQ(static_cast<int>(found.type), static_cast<int>(wanted.type));
  EXPECT_EQ(found.epoch, wanted.epoch);
  EXPECT_EQ(found.source, wanted.source);
  EXPECT_EQ(found.destination, wanted.destination);
  EXPECT_EQ(found.step, wanted.step);
  EXPECT_EQ(found.micro_batch, wanted.micro_batch);
  EXPECT_TRUE(found.rows == wanted.rows);
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size());
  for (size_t i = 0; i < wanted.tensors.size(); ++i) {
    const FrameTensor& a = found.tensors[i];
    const FrameTensor& b = wanted.tensors[i];
    EXPECT_EQ(static_cast<int>(a.kind), static_cast<int>(b.kind)) << "tensor " << i;
    EXPECT_EQ(static_cast<int>(a.view.dtype), static_cast<int>(b.view.dtype)) << "tensor " << i;
    EXPECT_EQ(to_string(a.view.shape), to_string(b.view.shape)) << "tensor " << i;
    EXPECT_TRUE(same_bytes(a.view, b.view)) << "tensor " << i;
  }
}

// Puts the header's checksum right after a change of a header field.
inline void sign(std::vector<std::byte>& message) {
  using namespace wire_layout;
  put(message.data() + kHeaderChecksumAt, uint32_t{0});
  const auto length = get<uint32_t>(message.data() + kHeaderLengthAt);
  const size_t bytes = std::min<size_t>(length, message.size());
  put(message.data() + kHeaderChecksumAt, crc32c(std::span<const std::byte>(message).first(bytes)));
}

// What `body` throws, which is of `kind`.
template <class Body>
std::string message_of_error(ErrorKind kind, Body&& body) {
  try {
    std::forward<Body>(body)();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(to_string(error.kind())), std::string(to_string(kind))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace weft::wire_test
