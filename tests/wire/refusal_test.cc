// What a decoder refuses: each names the field, what was wanted and what was found.
#include <functional>
#include <string>
#include <vector>

#include "wire/wire_test_util.h"

namespace weft {
namespace {

using namespace wire_layout;
using testing::HasSubstr;
using wire_test::add;
using wire_test::encoded;
using wire_test::message_of_error;
using wire_test::pattern;
using wire_test::sign;

using Bytes = std::vector<std::byte>;

// Two rows, then a tensor F32 [2, 3] at 0 and one U8 [5, 1] at 24: 29 bytes of payload.
Frame sound() {
  Frame frame;
  frame.type = FrameType::payload;
  frame.rows.resize(2);
  frame.tensors = {FrameTensor::of(TensorKind::hidden, pattern(DType::f32, {2, 3})),
                   FrameTensor::of(TensorKind::cache, pattern(DType::u8, {5, 1}))};
  return frame;
}

constexpr size_t kRow = kHeaderBytes + kRowBytes;  // the second
constexpr size_t kFirst = kHeaderBytes + 2 * kRowBytes;
constexpr size_t kSecond = kFirst + kTensorBytes + 2 * kDimensionBytes;

std::string refusal(FrameDecoder& decoder, const Bytes& message) {
  return message_of_error(ErrorKind::bad_input, [&] { (void)add(decoder, message); });
}
std::string refusal(const Bytes& message, const FrameLimits& limits = {}) {
  FrameDecoder decoder(limits);
  return refusal(decoder, message);
}

// A sound message after `change`, whose header checksum is right again.
Bytes changed(const std::function<void(Bytes&)>& change, Checksum checksum = Checksum::on) {
  Bytes message = encoded(sound(), {}, checksum).front();
  change(message);
  sign(message);
  return message;
}
template <class T>
Bytes with_field(size_t at, T value) {
  return changed([&](Bytes& message) { put(message.data() + at, value); });
}

TEST(Refusal, TheSoundFrameIsSound) {
  FrameDecoder decoder({});
  EXPECT_TRUE(add(decoder, encoded(sound()).front()).has_value());
}

TEST(Refusal, MessagesThatAreCut) {
  const Bytes whole = encoded(sound()).front();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string message = refusal(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)));
    if (size < kHeaderBytes) {
      EXPECT_THAT(message, HasSubstr("message: wanted at least 64 bytes, found " + std::to_string(size)));
    } else if (size < kSecond + kTensorBytes + 2 * kDimensionBytes) {
      EXPECT_THAT(message, HasSubstr("header length: wanted at most " + std::to_string(size) + ", found 224"));
    } else {
      EXPECT_THAT(message, HasSubstr("bytes of the message behind the header: wanted 29, found " + std::to_string(size - 224)));
    }
  }
  Bytes longer = whole;
  longer.emplace_back();
  EXPECT_THAT(refusal(longer), HasSubstr("wanted 29, found 30"));
}

TEST(Refusal, EveryBitThatIsFlipped) {
  const Bytes whole = encoded(sound()).front();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes message = whole;
    message[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    const std::string found = refusal(message);
    if (bit / 8 >= whole.size() - 29) {
      EXPECT_THAT(found, HasSubstr("payload checksum: wanted 0x")) << bit;
    }
  }
}

TEST(Refusal, MagicVersionsAndTypes) {
  EXPECT_EQ(refusal(with_field(0, uint8_t{'Q'})), "[frame] magic: wanted 'PPW1', found 'QPW1'");
  EXPECT_EQ(refusal(with_field(kMajorAt, uint16_t{2})), "[frame] major version: wanted 1, found 2");
  EXPECT_EQ(refusal(with_field(kTypeAt, uint16_t{0})), "[frame] frame type: wanted 1 to 9, found 0");
  EXPECT_EQ(refusal(with_field(kTypeAt, uint16_t{10})), "[frame] frame type: wanted 1 to 9, found 10");
}

TEST(Refusal, Flags) {
  EXPECT_THAT(refusal(with_field(kFlagsAt, uint16_t{0x21})), HasSubstr("flags: wanted bits of 0x1f, found 0x21"));
  EXPECT_THAT(refusal(with_field(kFlagsAt, uint16_t{0x09})),
              HasSubstr("flags: wanted no compression where no tensor has any, found 0x8"));
  EXPECT_THAT(refusal(with_field(kFlagsAt, uint16_t{0x11})), HasSubstr("flags: wanted a payload in the frame, found 0x11"));
  EXPECT_THAT(refusal(with_field(kFlagsAt, uint16_t{0x05})),
              HasSubstr("flags: wanted no last chunk of a frame without chunks"));
  EXPECT_THAT(refusal(with_field(kFlagsAt, uint16_t{0})),
              HasSubstr("payload checksum: wanted 0, as the flags say that there is none"));
  EXPECT_THAT(refusal(with_field(kChunkIndexAt, uint32_t{1})),
              HasSubstr("chunk: wanted 0 of 1 for a frame without chunks, found 1 of 1"));
  EXPECT_THAT(refusal(with_field(kChunkCountAt, uint32_t{2})), HasSubstr("found 0 of 2"));
}

TEST(Refusal, Checksums) {
  Bytes message = encoded(sound()).front();
  put(message.data() + kHeaderChecksumAt, uint32_t{5});
  EXPECT_THAT(refusal(message), HasSubstr("found 0x00000005"));
  EXPECT_THAT(refusal(with_field(kPayloadChecksumAt, uint32_t{6})), HasSubstr("payload checksum: wanted 0x00000006, found 0x"));
  // Without one the payload is not looked at.
  FrameDecoder decoder({});
  EXPECT_TRUE(add(decoder, changed([](Bytes& bytes) { bytes.back() ^= std::byte{1}; }, Checksum::off)).has_value());
  // Where the memory is not aligned, and in a chunk.
  message = encoded(sound()).front();
  message.back() ^= std::byte{1};
  FrameDecoder unaligned({});
  EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { (void)add(unaligned, message, 1); }), HasSubstr("payload checksum"));
  FrameLimits limits;
  limits.chunk = 16;
  for (const size_t bad : {size_t{0}, size_t{1}}) {
    FrameDecoder chunks(limits);
    auto messages = encoded(sound(), limits);
    messages[bad].back() ^= std::byte{1};
    for (size_t i = 0; i < bad; ++i) EXPECT_FALSE(add(chunks, messages[i]).has_value());
    EXPECT_THAT(refusal(chunks, messages[bad]), HasSubstr("payload checksum")) << bad;
  }
}

TEST(Refusal, WhatIsAboveTheLimits) {
  const Bytes message = encoded(sound()).front();
  FrameLimits limits;
  limits.header = 223;
  EXPECT_THAT(refusal(message, limits), HasSubstr("header length: wanted at most 223, found 224"));
  limits = {};
  limits.frame = 224 + 28;
  EXPECT_THAT(refusal(message, limits), HasSubstr("payload length: wanted at most 28, found 29"));
  limits.frame = 100;
  EXPECT_THAT(refusal(message, limits), HasSubstr("payload length: wanted at most 0, found 29"));
  limits = {};
  limits.chunk = 28;
  EXPECT_THAT(refusal(message, limits), HasSubstr("payload of one message: wanted at most 28, found 29"));
  limits = {};
  limits.tensors = 1;
  EXPECT_THAT(refusal(message, limits), HasSubstr("number of tensors: wanted at most 1, found 2"));
  limits = {};
  limits.rows = 1;
  EXPECT_THAT(refusal(message, limits), HasSubstr("number of rows: wanted at most 1, found 2"));
  // Before anything is allocated: the numbers are those of a header of 64 bytes.
  EXPECT_THAT(refusal(with_field(kPayloadLengthAt, UINT64_MAX)), HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, UINT32_MAX)),
              HasSubstr("header length: wanted at most 253, found 4294967295"));
}

TEST(Refusal, HeaderLengths) {
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, uint32_t{0})),
              HasSubstr("header length: wanted a multiple of 8, at least 64, found 0"));
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, uint32_t{56})), HasSubstr("at least 64, found 56"));
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, uint32_t{220})), HasSubstr("a multiple of 8"));
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, uint32_t{64})),
              HasSubstr("header length: wanted room for 2 rows and 2 tensors, found 64"));
  EXPECT_THAT(refusal(with_field(kHeaderLengthAt, uint32_t{216})),
              HasSubstr("tensor 1: dimensions: wanted 16 bytes of the header, found 8"));
  EXPECT_THAT(refusal(with_field(kTensorCountAt, uint16_t{1})), HasSubstr("header length: wanted 176, found 224"));
  EXPECT_THAT(refusal(with_field(kRowCountAt, uint16_t{4096})), HasSubstr("header length: wanted room for 4096 rows"));
}

TEST(Refusal, Rows) {
  EXPECT_EQ(refusal(with_field(kRow + kRowPhaseAt, uint16_t{4})), "[frame] row 1: phase: wanted 0 to 3, found 4");
  EXPECT_EQ(refusal(with_field(kRow + kRowFlagsAt, uint16_t{8})), "[frame] row 1: flags: wanted bits of 0x3, found 0x8");
}

TEST(Refusal, TensorTables) {
  const auto entry = [](size_t at, auto value) { return refusal(with_field(at, value)); };
  EXPECT_THAT(entry(kSecond + kTensorKindAt, uint8_t{8}), HasSubstr("tensor 1: kind: wanted 0 to 7, found 8"));
  EXPECT_THAT(entry(kSecond + kTensorRankAt, uint8_t{9}), HasSubstr("tensor 1: dimensions: wanted at most 8, found 9"));
  EXPECT_THAT(entry(kSecond + kTensorRankAt, uint8_t{8}),
              HasSubstr("tensor 1: dimensions: wanted 64 bytes of the header, found 16"));
  EXPECT_THAT(entry(kSecond + kTensorEncodingAt, uint8_t{1}), HasSubstr("tensor 1: encoding: wanted 0 (raw), found 1"));
  EXPECT_THAT(entry(kSecond + kTensorReservedAt, uint32_t{7}), HasSubstr("tensor 1: reserved: wanted 0, found 7"));
  EXPECT_THAT(entry(kSecond + kTensorStoredAt, uint64_t{4}), HasSubstr("tensor 1: stored length: wanted 5 (raw), found 4"));
  EXPECT_THAT(entry(kSecond + kTensorLogicalAt, uint64_t{6}),
              HasSubstr("tensor 1: logical length: wanted 5 of U8 [5, 1], found 6"));
  // Overlapping, with a hole, not aligned, wrapping around.
  for (const uint64_t offset : {uint64_t{16}, uint64_t{32}, uint64_t{25}, uint64_t{0}, UINT64_MAX, UINT64_MAX - 7})
    EXPECT_THAT(entry(kSecond + kTensorOffsetAt, offset),
                HasSubstr("tensor 1: offset: wanted 24 (behind the tensor before, aligned), found " + std::to_string(offset)));
  EXPECT_THAT(entry(kFirst + kTensorOffsetAt, uint64_t{8}), HasSubstr("tensor 0: offset: wanted 0"));
  EXPECT_THAT(entry(kFirst + kTensorDTypeAt, uint8_t{16}), HasSubstr("dtype code: wanted 0 to 7 or 9 to 15, found 16 (e8m0)"));
}

TEST(Refusal, DimensionsThatOverflow) {
  constexpr size_t kExtents = kSecond + kTensorBytes;
  const auto dimensions = [](uint64_t a, uint64_t b, uint64_t bytes) {
    return refusal(changed([&](Bytes& message) {
      put(message.data() + kExtents, a);
      put(message.data() + kExtents + kDimensionBytes, b);
      put(message.data() + kSecond + kTensorLogicalAt, bytes);
      put(message.data() + kSecond + kTensorStoredAt, bytes);
    }));
  };
  EXPECT_THAT(dimensions(UINT64_MAX, 1, 5),
              HasSubstr("tensor 1: dimension 0: wanted at most 9223372036854775807, found 18446744073709551615"));
  EXPECT_THAT(dimensions(uint64_t{1} << 32U, uint64_t{1} << 32U, 0),
              HasSubstr("tensor 1: dimensions: wanted a size that fits 63 bits"));
  EXPECT_THAT(dimensions((uint64_t{1} << 63U) - 1, 3, 5), HasSubstr("wanted a size that fits 63 bits"));
  EXPECT_THAT(dimensions(uint64_t{1} << 40U, 1, uint64_t{1} << 40U),
              HasSubstr("tensor 1: end: wanted within the payload of 29 bytes, found offset 24 and 1099511627776 bytes"));
  EXPECT_THAT(dimensions(6, 1, 6), HasSubstr("within the payload"));
  EXPECT_THAT(dimensions(4, 1, 4), HasSubstr("payload length: wanted 28, found 29"));
  // Bytes, not elements, overflow.
  EXPECT_THAT(refusal(changed([&](Bytes& message) {
                put(message.data() + kSecond + kTensorDTypeAt, uint8_t{13});
                put(message.data() + kExtents, uint64_t{1} << 61U);
              })),
              HasSubstr("wanted a size that fits 63 bits, found F64 [2305843009213693952, 1]"));
}

TEST(Refusal, ChunksOutOfOrder) {
  FrameLimits limits;
  limits.chunk = 8;
  const auto chunks = encoded(sound(), limits);  // 29 bytes: 4 chunks
  ASSERT_EQ(chunks.size(), 4U);
  const auto after = [&](size_t count, const Bytes& message) {
    FrameDecoder decoder(limits);
    for (size_t i = 0; i < count; ++i) EXPECT_FALSE(add(decoder, chunks[i]).has_value());
    return refusal(decoder, message);
  };
  const auto field = [&](size_t chunk, size_t at, auto value) {
    Bytes message = chunks[chunk];
    put(message.data() + at, value);
    sign(message);
    return message;
  };
  EXPECT_THAT(after(0, chunks[1]), HasSubstr("payload length: wanted 0, found 29"));  // it has no tables
  EXPECT_THAT(after(1, chunks[0]), HasSubstr("number of tensors of a later chunk: wanted 0, found 2"));
  EXPECT_THAT(after(1, chunks[2]), HasSubstr("chunk 1: index: wanted 1, found 2"));
  EXPECT_THAT(after(2, chunks[1]), HasSubstr("chunk 2: index: wanted 2, found 1"));
  EXPECT_THAT(after(0, field(0, kChunkIndexAt, uint32_t{1})), HasSubstr("chunk index: wanted 0, found 1"));
  EXPECT_THAT(after(0, field(0, kChunkCountAt, uint32_t{5})), HasSubstr("chunk count: wanted 4, found 5"));
  EXPECT_THAT(after(1, field(1, kChunkCountAt, uint32_t{5})), HasSubstr("chunk 1: chunk count: wanted 4, found 5"));
  EXPECT_THAT(after(1, field(1, kPayloadLengthAt, uint64_t{30})), HasSubstr("chunk 1: payload length: wanted 29, found 30"));
  EXPECT_THAT(after(1, field(1, kTypeAt, uint16_t{9})), HasSubstr("chunk 1: frame type: wanted 2, found 9"));
  EXPECT_THAT(after(1, field(1, kEpochAt, uint32_t{9})), HasSubstr("chunk 1: epoch: wanted 0, found 9"));
  EXPECT_THAT(after(1, field(1, kSourceAt, uint16_t{9})), HasSubstr("chunk 1: source: wanted 65535, found 9"));
  EXPECT_THAT(after(1, field(1, kDestinationAt, uint16_t{9})), HasSubstr("chunk 1: destination: wanted 65535, found 9"));
  EXPECT_THAT(after(1, field(1, kStepAt, uint64_t{9})), HasSubstr("chunk 1: step: wanted 0, found 9"));
  EXPECT_THAT(after(1, field(1, kMicroBatchAt, uint32_t{9})), HasSubstr("chunk 1: micro-batch: wanted 0, found 9"));
  EXPECT_THAT(after(1, field(1, kFlagsAt, uint16_t{7})), HasSubstr("flag of the last chunk: wanted false, found true"));
  EXPECT_THAT(after(0, field(0, kFlagsAt, uint16_t{7})), HasSubstr("flag of the last chunk: wanted false, found true"));
  EXPECT_THAT(after(3, field(3, kFlagsAt, uint16_t{3})), HasSubstr("flag of the last chunk: wanted true, found false"));
  Bytes shorter = chunks[1];
  shorter.pop_back();
  EXPECT_THAT(after(1, shorter), HasSubstr("chunk 1: bytes: wanted 8, found 7"));
  Bytes longer = chunks[3];
  longer.emplace_back();
  EXPECT_THAT(after(3, longer), HasSubstr("chunk 3: bytes: wanted 5, found 6"));
  Bytes odd = chunks[0];
  odd.pop_back();
  EXPECT_THAT(after(0, odd), HasSubstr("bytes of the first chunk: wanted a multiple of 8 below the payload of 29, found 7"));
  odd.resize(odd.size() - 7);
  EXPECT_THAT(after(0, odd), HasSubstr("found 0"));
}

TEST(Refusal, ANewerMinorVersionIsReadAsFarAsItIsKnown) {
  const auto newer = [](const std::function<void(Bytes&)>& change) {
    return changed([&](Bytes& message) {
      put(message.data() + kMinorAt, uint16_t{7});
      change(message);
    });
  };
  FrameDecoder decoder({});
  wire_test::expect_same(*add(decoder, newer([](Bytes&) {})), sound());
  // A longer table, unknown flags, a reserved field in use.
  const Bytes longer = newer([](Bytes& message) {
    message.insert(message.begin() + 224, 16, std::byte{0xEE});
    put(message.data() + kHeaderLengthAt, uint32_t{240});
    put(message.data() + kFlagsAt, uint16_t{0x101});
    put(message.data() + kRow + kRowFlagsAt, uint16_t{0x100});
    put(message.data() + kFirst + kTensorReservedAt, uint32_t{1});
  });
  wire_test::expect_same(*add(decoder, longer), sound());
  EXPECT_EQ(decoder.ignored(), 0);
  EXPECT_FALSE(add(decoder, newer([](Bytes& message) { put(message.data() + kTypeAt, uint16_t{12}); })).has_value());
  EXPECT_EQ(decoder.ignored(), 1);
  // What is unsafe stays refused.
  EXPECT_THAT(refusal(newer([](Bytes& message) { put(message.data() + kFlagsAt, uint16_t{0x9}); })), HasSubstr("compression"));
  EXPECT_THAT(refusal(newer([](Bytes& message) { put(message.data() + kSecond + kTensorLogicalAt, uint64_t{6}); })),
              HasSubstr("logical length"));
}

}  // namespace
}  // namespace weft
