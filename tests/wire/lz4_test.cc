// Payload frames whose tensors are LZ4 blocks: what passes, what is not worth a block, and what is refused.
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "pipeline/wire/link.h"
#include "pipeline/wire/lz4_block.h"

#include "wire/wire_test_util.h"

namespace weft {
namespace {

using namespace wire_layout;
using testing::AllOf;
using testing::HasSubstr;
using wire_test::add;
using wire_test::encoded;
using wire_test::expect_same;
using wire_test::message_of_error;
using wire_test::passed;
using wire_test::pattern;
using wire_test::sign;

using Bytes = std::vector<std::byte>;

// `count` times the same 24 bytes, NaNs with a payload among them.
std::shared_ptr<const Tensor> periodic(DType dtype, int64_t count, uint32_t seed = 1) {
  const auto once = pattern(DType::u8, {24}, seed);
  Tensor made = Tensor::uninitialized(dtype, {count, 24 / size_of(dtype)});
  for (int64_t i = 0; i < count; ++i) std::copy_n(once->view().data, 24, made.data() + 24 * i);
  return std::make_shared<const Tensor>(std::move(made));
}

Frame boundary(std::vector<std::shared_ptr<const Tensor>> tensors) {
  Frame frame;
  frame.type = FrameType::payload;
  frame.epoch = 3;
  frame.step = 7;
  frame.rows.resize(1);
  for (auto& tensor : tensors) frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, std::move(tensor)));
  return frame;
}

std::vector<Bytes> blocks_of(const Frame& frame, const FrameLimits& limits = {}, Checksum checksum = Checksum::on) {
  return encoded(frame, limits, checksum, Compression::lz4);
}

int64_t bytes_of(const std::vector<Bytes>& messages) {
  return std::accumulate(messages.begin(), messages.end(), int64_t{0},
                         [](int64_t sum, const Bytes& message) { return sum + static_cast<int64_t>(message.size()); });
}

uint16_t flags_of(const Bytes& message) { return get<uint16_t>(message.data() + kFlagsAt); }

TEST(Lz4, EveryDtypeRoundTrips) {
  FrameLimits small;
  small.chunk = 16;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i64,
                            DType::i32, DType::i16, DType::i8, DType::u64, DType::u32, DType::u16, DType::u8, DType::boolean}) {
    const Frame frame = boundary({periodic(dtype, 100, 1), periodic(dtype, 50, 2)});
    for (const FrameLimits& limits : {FrameLimits(), small}) {
      const std::vector<Bytes> messages = blocks_of(frame, limits);
      EXPECT_LT(bytes_of(messages), bytes_of(encoded(frame, limits))) << to_string(dtype);
      EXPECT_EQ(messages.size() > 1, limits.chunk == 16);
      for (const Bytes& message : messages) EXPECT_NE(flags_of(message) & kFlagCompressed, 0);
      for (const Checksum checksum : {Checksum::on, Checksum::off}) {
        for (const int64_t misalignment : {0, 3})
          expect_same(passed(frame, limits, checksum, misalignment, Compression::lz4), frame);
      }
    }
  }
}

TEST(Lz4, AFrameThatDoesNotGetSmallerIsWhatItIsWithout) {
  Frame none = boundary({});
  none.tensors.clear();
  for (const Frame& frame : {boundary({pattern(DType::f32, {30, 40})}), boundary({pattern(DType::u8, {1})}),
                             boundary({pattern(DType::u8, {0, 4})}), none}) {
    EXPECT_TRUE(blocks_of(frame) == encoded(frame));
  }
}

TEST(Lz4, OnlyTensorsThatGetSmallerAreBlocks) {
  const Frame frame = boundary({pattern(DType::bf16, {31}), periodic(DType::f32, 40), pattern(DType::u8, {0, 3}),
                                pattern(DType::i64, {}), periodic(DType::bf16, 9)});
  const Bytes message = blocks_of(frame).front();
  size_t at = kHeaderBytes + kRowBytes;
  for (const auto& [encoding, rank] : std::vector<std::pair<int, size_t>>{{0, 1}, {1, 2}, {0, 2}, {0, 0}, {1, 2}}) {
    EXPECT_EQ(get<uint8_t>(message.data() + at + kTensorEncodingAt), encoding);
    at += kTensorBytes + rank * kDimensionBytes;
  }
  expect_same(passed(frame, {}, Checksum::on, 0, Compression::lz4), frame);
}

TEST(Lz4, OtherTypesOfFrameStayAsTheyAre) {
  Frame frame = boundary({periodic(DType::f32, 40)});
  for (uint16_t type = 1; type <= 9; ++type) {
    frame.type = static_cast<FrameType>(type);
    EXPECT_EQ(blocks_of(frame) == encoded(frame), frame.type != FrameType::payload) << type;
  }
}

TEST(Lz4, TheLimitIsThatOfTheFrameWithoutCompression) {
  const Frame frame = boundary({periodic(DType::f32, 100)});
  FrameLimits limits;
  limits.frame = 64 + 32 + 48 + 2400;
  const std::vector<Bytes> messages = blocks_of(frame, limits);
  limits.frame -= 1;
  EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { (void)blocks_of(frame, limits); }),
              HasSubstr("frame: wanted at most 2399, found 2400"));
  FrameDecoder decoder(limits);
  EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { (void)add(decoder, messages.front()); }),
              HasSubstr("bytes of all tensors: wanted at most 2399, found 2400"));
}

// One block without a checksum of the payload: F32 [100, 6].
constexpr size_t kEntry = kHeaderBytes + kRowBytes;
constexpr size_t kPayload = kEntry + kTensorBytes + 2 * kDimensionBytes;

Bytes sound() { return blocks_of(boundary({periodic(DType::f32, 100)}), {}, Checksum::off).front(); }

std::string refusal(const Bytes& message, const FrameLimits& limits = {}) {
  FrameDecoder decoder(limits);
  return message_of_error(ErrorKind::bad_input, [&] { (void)add(decoder, message); });
}
Bytes changed(const std::function<void(Bytes&)>& change) {
  Bytes message = sound();
  change(message);
  sign(message);
  return message;
}
// Rows of 24 bytes that the tensor is said to have.
Bytes with_rows(uint64_t rows) {
  return changed([&](Bytes& message) {
    put(message.data() + kEntry + kTensorBytes, rows);
    put(message.data() + kEntry + kTensorLogicalAt, rows * 24);
  });
}
Bytes with_payload(size_t bytes) {
  return changed([&](Bytes& message) {
    message.resize(kPayload + bytes);
    put(message.data() + kEntry + kTensorStoredAt, uint64_t{bytes});
    put(message.data() + kPayloadLengthAt, uint64_t{bytes});
  });
}

TEST(Lz4, ACorruptBlockIsAnErrorThatNamesFrameAndTensor) {
  const Bytes whole = sound();
  const size_t stored = whole.size() - kPayload;
  const auto corrupt =
      AllOf(HasSubstr("payload frame 7 of epoch 3, tensor 0"), HasSubstr("that holds 2400"), HasSubstr("found a corrupt one"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { std::fill(message.begin() + kPayload, message.end(), std::byte{0xFF}); })),
              corrupt);
  // Truncated anywhere, or with something behind it.
  for (size_t bytes = 10; bytes < stored; ++bytes) EXPECT_THAT(refusal(with_payload(bytes)), corrupt) << bytes;
  EXPECT_THAT(refusal(with_payload(stored + 1)), corrupt);
  // The second of two.
  Bytes second = blocks_of(boundary({periodic(DType::f32, 100), periodic(DType::f32, 60)}), {}, Checksum::off).front();
  std::fill(second.end() - 8, second.end(), std::byte{0xFF});
  EXPECT_THAT(refusal(second), HasSubstr("payload frame 7 of epoch 3, tensor 1"));
  // With a checksum that is seen first.
  Bytes checked = blocks_of(boundary({periodic(DType::f32, 100)})).front();
  checked.back() ^= std::byte{1};
  EXPECT_THAT(refusal(checked), HasSubstr("payload checksum"));
  // Any bit: other bytes or an error, nothing else.
  for (size_t bit = 0; bit < stored * 8; ++bit) {
    const Bytes flipped =
        changed([&](Bytes& message) { message[kPayload + bit / 8] ^= static_cast<std::byte>(1U << bit % 8); });
    FrameDecoder decoder({});
    try {
      EXPECT_EQ(add(decoder, flipped)->tensors.front().view.bytes(), 2400);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), corrupt);
    }
  }
}

TEST(Lz4, SizesThatLie) {
  const size_t stored = sound().size() - kPayload;
  ASSERT_LT(stored, 100U);
  EXPECT_THAT(refusal(with_rows(101)), HasSubstr("that holds 2424, found a corrupt one"));
  EXPECT_THAT(refusal(with_rows(99)), HasSubstr("that holds 2376, found a corrupt one"));
  EXPECT_THAT(refusal(with_rows(1)), HasSubstr("tensor 0: stored length: wanted 1 to 23 (LZ4), found"));
  EXPECT_THAT(refusal(with_rows(0)), HasSubstr("tensor 0: stored length: wanted 1 to 0 (LZ4), found"));
  // Before anything is allocated.
  EXPECT_THAT(refusal(with_rows(1'000'000)),
              HasSubstr("tensor 0: logical length: wanted at most 255 for each byte of an LZ4 block of"));
  EXPECT_THAT(refusal(with_rows(uint64_t{1} << 40U)),
              HasSubstr("tensor 0: logical length of an LZ4 block: wanted at most 2113929216, found 26388279066624"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kEntry + kTensorStoredAt, uint64_t{0}); })),
              HasSubstr("tensor 0: stored length: wanted 1 to 2399 (LZ4), found 0"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kEntry + kTensorStoredAt, uint64_t{2400}); })),
              HasSubstr("tensor 0: stored length: wanted 1 to 2399 (LZ4), found 2400"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kEntry + kTensorStoredAt, uint64_t{2399}); })),
              HasSubstr("tensor 0: end: wanted within the payload of"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kEntry + kTensorLogicalAt, uint64_t{2401}); })),
              HasSubstr("tensor 0: logical length: wanted 2400 of F32 [100, 6], found 2401"));
}

TEST(Lz4, FlagsAndEncodingsAgree) {
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kEntry + kTensorEncodingAt, uint8_t{2}); })),
              HasSubstr("tensor 0: encoding: wanted 0 (raw) or 1 (LZ4), found 2"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kFlagsAt, uint16_t{0}); })),
              HasSubstr("tensor 0: encoding: wanted 0 (raw), found 1"));
  EXPECT_THAT(refusal(changed([](Bytes& message) { put(message.data() + kTypeAt, uint16_t{9}); })),
              HasSubstr("flags: wanted compression in frames of type 2 alone, found 0x8 in type 9"));
  FrameLimits limits;
  limits.chunk = 16;
  std::vector<Bytes> chunks = blocks_of(boundary({periodic(DType::f32, 100)}), limits);
  ASSERT_GE(chunks.size(), 2U);
  put(chunks[1].data() + kFlagsAt, static_cast<uint16_t>(flags_of(chunks[1]) & ~kFlagCompressed));
  sign(chunks[1]);
  FrameDecoder decoder(limits);
  EXPECT_FALSE(add(decoder, chunks[0]).has_value());
  EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { (void)add(decoder, chunks[1]); }),
              HasSubstr("chunk 1: compression: wanted true, found false"));
}

TEST(Lz4, ABlockIsAsLargeAsItSays) {
  Bytes zeros(1 << 20);
  const std::optional<Tensor> block = lz4_compress(zeros);
  ASSERT_TRUE(block.has_value());
  EXPECT_LT(block->bytes(), 5000);
  EXPECT_GT(block->bytes() * kMostLz4Ratio, int64_t{1} << 20);
  Bytes found(zeros.size(), std::byte{1});
  const std::span<const std::byte> bytes{block->view().data, static_cast<size_t>(block->bytes())};
  EXPECT_TRUE(lz4_decompress(bytes, found));
  EXPECT_TRUE(found == zeros);
  EXPECT_FALSE(lz4_decompress(bytes, std::span(found).first(found.size() - 1)));
  found.emplace_back();
  EXPECT_FALSE(lz4_decompress(bytes, found));
  EXPECT_FALSE(lz4_decompress({}, found));
}

TEST(Lz4, ALinkCompressesWhatTheOtherEndReadsFromThenOn) {
  auto [here, there] = in_process_streams();
  LinkOptions options;
  options.credits = 8;
  Link sender(std::move(here), options);
  Link receiver(std::move(there), options);
  const Frame small = boundary({periodic(DType::f32, 100)});
  const Frame dense = boundary({pattern(DType::f32, {100, 6})});
  const auto sent = [&](const Frame& frame) {
    const int64_t before = sender.counters().payload_bytes_sent;
    sender.send(frame);
    const std::optional<Frame> found = receiver.receive();
    EXPECT_TRUE(found.has_value());
    if (found) expect_same(*found, frame);
    return sender.counters().payload_bytes_sent - before;
  };
  EXPECT_EQ(sent(small), 2400);
  sender.compress(Compression::lz4);
  EXPECT_LT(sent(small), 100);
  EXPECT_EQ(sent(dense), 2400);
  EXPECT_EQ(receiver.counters().bytes_received, sender.counters().bytes_sent);
}

}  // namespace
}  // namespace weft
