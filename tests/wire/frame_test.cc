// Frames that pass, and frames that must not.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "wire/wire_test_util.h"

namespace weft {
namespace {

using namespace wire_layout;
using testing::HasSubstr;
using wire_test::add;
using wire_test::encoded;
using wire_test::expect_same;
using wire_test::message_of;
using wire_test::message_of_error;
using wire_test::passed;
using wire_test::pattern;
using wire_test::sign;
using wire_test::tensor_of;

constexpr std::array kAllTypes = {DType::f64,     DType::f32, DType::f16, DType::bf16, DType::f8_e4m3,
                                  DType::f8_e5m2, DType::i64, DType::i32, DType::i16,  DType::i8,
                                  DType::u64,     DType::u32, DType::u16, DType::u8,   DType::boolean};

Frame with(std::vector<FrameTensor> tensors, FrameType type = FrameType::control) {
  Frame frame;
  frame.type = type;
  frame.tensors = std::move(tensors);
  return frame;
}

FrameTensor cache(std::shared_ptr<const Tensor> tensor) { return FrameTensor::of(TensorKind::cache, std::move(tensor)); }

// Where entry `index` of the tensor table stands; those before it have `rank` dimensions.
size_t entry_at(size_t index, size_t rank, size_t rows = 0) {
  return kHeaderBytes + rows * kRowBytes + index * (kTensorBytes + rank * kDimensionBytes);
}

TEST(Frame, EveryFieldPasses) {
  Frame frame;
  frame.type = FrameType::payload;
  frame.epoch = 0xFEDCBA98U;
  frame.source = 3;
  frame.destination = 4;
  frame.step = 0xFFFFFFFFFFFFFFFEULL;
  frame.micro_batch = 0x80000001U;
  frame.rows = {{1, 2, 3, 4, 0, 0, 5}, {UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 3, 3, UINT64_MAX}};
  frame.tensors = {FrameTensor::of(TensorKind::sealed, pattern(DType::bf16, {3, 5}, 1)),
                   FrameTensor::of(TensorKind::token_ids, pattern(DType::u32, {3}, 2)),
                   FrameTensor::of(TensorKind::positions, pattern(DType::i64, {}, 3)),
                   FrameTensor::of(TensorKind::embeddings, pattern(DType::f32, {0, 4}, 4)),
                   FrameTensor::of(TensorKind::logits, pattern(DType::f32, {1, 1, 1, 1, 1, 1, 1, 2}, 5)),
                   message_of("text")};
  for (const Checksum checksum : {Checksum::on, Checksum::off}) {
    for (const int64_t misalignment : {0, 1, 4, 7}) {
      const Frame found = passed(frame, {}, checksum, misalignment);
      expect_same(found, frame);
      EXPECT_EQ(std::string(found.message()), "text");
      for (const FrameTensor& tensor : found.tensors)
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view.data) % kAlignment, 0U) << "typed views need it";
    }
  }
}

TEST(Frame, EveryTypeOfFramePasses) {
  for (uint16_t type = 1; type <= 9; ++type) {
    const Frame frame = with({message_of("x")}, static_cast<FrameType>(type));
    expect_same(passed(frame), frame);
    const Frame empty = with({}, static_cast<FrameType>(type));
    expect_same(passed(empty), empty);
  }
}

TEST(Frame, NoTensorByteIsCopied) {
  const auto tensor = pattern(DType::f32, {1000});
  FrameLimits limits;
  limits.chunk = 1024;
  const Frame frame = with({cache(tensor)});
  std::vector<const std::byte*> starts;
  int64_t bytes = 0;
  for (const EncodedMessage& message : encode_frame(frame, limits, Checksum::on)) {
    ASSERT_EQ(message.parts.size(), 1U);
    EXPECT_EQ(message.parts[0].view.data, tensor->view().data + bytes);
    EXPECT_EQ(message.parts[0].owner.get(), tensor.get());
    bytes += message.parts[0].view.bytes();
  }
  EXPECT_EQ(bytes, 4000);
  const wire_test::Received message = wire_test::received(encoded(frame).front());
  FrameDecoder decoder({});
  const std::optional<Frame> found = decoder.add(message.bytes, message.memory);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->tensors[0].view.data, message.bytes.data() + message.bytes.size() - 4000);
  EXPECT_EQ(found->tensors[0].owner.get(), message.memory.get());
}

// Every value that a conversion would change: NaNs with a payload, both zeros, subnormals, infinities, and the ends of
// integers.
std::shared_ptr<const Tensor> edge_values(DType dtype) {
  const auto words = [&]<class T>(const std::vector<T>& values) {
    return tensor_of(dtype, {static_cast<int64_t>(values.size())}, values);
  };
  switch (dtype) {
    case DType::f64:
      return words(std::vector<uint64_t>{0x7FF0DEADBEEF0001, 0xFFF8000000000123, 0x8000000000000000, 1, 0x800FFFFFFFFFFFFF,
                                         0x7FF0000000000000});
    case DType::f32:
      return words(std::vector<uint32_t>{0x7F80BEEF, 0xFFC00123, 0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000});
    case DType::f16: return words(std::vector<uint16_t>{0x7C01, 0xFE23, 0x8000, 1, 0x83FF, 0x7C00, 0xFC00});
    case DType::bf16: return words(std::vector<uint16_t>{0x7F81, 0xFFC3, 0x8000, 1, 0x807F, 0x7F80, 0xFF80});
    case DType::i64: return words(std::vector<int64_t>{INT64_MIN, -1, 0, INT64_MAX});
    case DType::u64: return words(std::vector<uint64_t>{0, 1, UINT64_MAX});
    case DType::i32: return words(std::vector<int32_t>{INT32_MIN, -1, 0, INT32_MAX});
    case DType::u32: return words(std::vector<uint32_t>{0, 1, 0x80000000, UINT32_MAX});
    case DType::i16: return words(std::vector<int16_t>{INT16_MIN, -1, 0, INT16_MAX});
    case DType::u16: return words(std::vector<uint16_t>{0, 1, 0x8000, UINT16_MAX});
    case DType::boolean: return words(std::vector<uint8_t>{0, 1, 1, 0, 1});
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i8:
    case DType::u8: {
      std::vector<uint8_t> all(256);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
      return words(all);
    }
  }
  return nullptr;
}

TEST(Frame, D6EveryDtypeRoundTrips) {
  FrameLimits small;
  small.chunk = 8;
  for (const DType dtype : kAllTypes) {
    const auto tensor = edge_values(dtype);
    for (const FrameLimits& limits : {FrameLimits(), small}) {
      const Frame frame = with({cache(tensor), cache(tensor)});
      const auto messages = encoded(frame, limits);
      EXPECT_EQ(get<uint8_t>(messages[0].data() + entry_at(1, 1) + kTensorDTypeAt), wire_code(dtype)) << to_string(dtype);
      expect_same(passed(frame, limits), frame);
    }
  }
}

TEST(Frame, D6CodesAreThoseOfTheProtocol) {
  const std::vector<std::pair<DType, int>> table = {
      {DType::f32, 0},  {DType::f16, 1},  {DType::bf16, 2},    {DType::i32, 3},      {DType::i16, 4},
      {DType::i8, 5},   {DType::u8, 6},   {DType::boolean, 7}, {DType::u32, 9},      {DType::u16, 10},
      {DType::i64, 11}, {DType::u64, 12}, {DType::f64, 13},    {DType::f8_e4m3, 14}, {DType::f8_e5m2, 15}};
  EXPECT_EQ(table.size(), kAllTypes.size());
  for (const auto& [dtype, code] : table) {
    EXPECT_EQ(wire_code(dtype), code) << to_string(dtype);
    EXPECT_EQ(static_cast<int>(dtype_of_wire_code(static_cast<uint8_t>(code))), static_cast<int>(dtype)) << code;
  }
  EXPECT_EQ(size_of(dtype_of_wire_code(9)), 4);
  EXPECT_EQ(size_of(dtype_of_wire_code(6)), 1);
}

TEST(Frame, D6CodesWithoutATypeAreRefusedByName) {
  const auto refusal = [](uint8_t code) {
    return message_of_error(ErrorKind::bad_input, [&] { (void)dtype_of_wire_code(code); });
  };
  EXPECT_EQ(refusal(8), "[frame] dtype code: wanted 0 to 7 or 9 to 15, found 8 (int4 packed)");
  EXPECT_EQ(refusal(16), "[frame] dtype code: wanted 0 to 7 or 9 to 15, found 16 (e8m0)");
  EXPECT_EQ(refusal(200), "[frame] dtype code: wanted 0 to 7 or 9 to 15, found 200");
  // The same inside a frame.
  for (const uint8_t code : {uint8_t{8}, uint8_t{16}, uint8_t{200}}) {
    std::vector<std::byte> message = encoded(with({message_of("x")})).front();
    put(message.data() + entry_at(0, 1) + kTensorDTypeAt, code);
    sign(message);
    FrameDecoder decoder({});
    EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { (void)add(decoder, message); }),
                HasSubstr("dtype code: wanted 0 to 7 or 9 to 15, found " + std::to_string(code)));
  }
}

TEST(Frame, D6ATypeWithoutACodeIsRefusedByItsNumber) {
  // Each type has one; this is what a new type meets until it gets one.
  EXPECT_THAT(message_of_error(ErrorKind::unsupported, [] { (void)wire_code(static_cast<DType>(77)); }),
              HasSubstr("wanted a type with a code on the wire, found type number 77"));
}

TEST(Frame, D6PackedAffineWeightsAndScalesPassInOneFrame) {
  const std::vector<FrameTensor> tensors = {
      cache(pattern(DType::u32, {2, 3, 448}, 1)), cache(pattern(DType::u8, {2, 3, 112}, 2)),
      cache(pattern(DType::bf16, {2, 3, 7}, 3)), cache(pattern(DType::f32, {2, 3, 5}, 4))};
  const Frame frame = with(tensors);
  FrameLimits small;
  small.chunk = 1000;
  for (const FrameLimits& limits : {FrameLimits(), small}) {
    const std::vector<std::byte> first = encoded(frame, limits).front();
    const std::vector<int> codes = {9, 6, 2, 0};
    for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(get<uint8_t>(first.data() + entry_at(i, 3) + kTensorDTypeAt), codes[i]);
    expect_same(passed(frame, limits), frame);
  }
}

TEST(Frame, D8PayloadsFromOneByteOnPass) {
  constexpr int64_t kChunk = 4096;
  FrameLimits limits;
  limits.chunk = kChunk;
  for (const int64_t bytes : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{63}, kChunk - 1, kChunk,
                              kChunk + 1, 2 * kChunk - 1, 2 * kChunk, 2 * kChunk + 1, 10 * kChunk + 3}) {
    const Frame frame = with({FrameTensor::of(TensorKind::hidden, pattern(DType::u8, {bytes}, static_cast<uint32_t>(bytes)))});
    EXPECT_EQ(frame.payload_bytes(), bytes);
    EXPECT_EQ(encoded(frame, limits).size(), static_cast<size_t>((bytes - 1) / kChunk + 1)) << bytes;
    for (const Checksum checksum : {Checksum::on, Checksum::off}) {
      expect_same(passed(frame, limits, checksum), frame);
      expect_same(passed(frame, limits, checksum, 3), frame);
    }
  }
}

TEST(Frame, ChunksMayBeOfAnySizeThatIsAMultipleOfEight) {
  const Frame frame =
      with({cache(pattern(DType::u8, {13}, 1)), cache(pattern(DType::f64, {9}, 2)), cache(pattern(DType::u8, {5}, 3))});
  EXPECT_EQ(frame.payload_bytes(), 16 + 72 + 5);
  for (int64_t chunk = 8; chunk <= 104; ++chunk) {
    FrameLimits limits;
    limits.chunk = chunk;
    expect_same(passed(frame, limits), frame);
  }
}

TEST(Frame, AFrameInOneMessageMayComeBetweenChunks) {
  FrameLimits limits;
  limits.chunk = 16;
  const Frame large = with({cache(pattern(DType::u8, {50}))}, FrameType::payload);
  const Frame small = with({}, FrameType::ping);
  FrameDecoder decoder(limits);
  const auto chunks = encoded(large, limits);
  ASSERT_EQ(chunks.size(), 4U);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto between = add(decoder, encoded(small).front());
    ASSERT_TRUE(between.has_value());
    expect_same(*between, small);
    const auto whole = add(decoder, chunks[i]);
    EXPECT_EQ(whole.has_value(), i == 3);
    EXPECT_EQ(decoder.incomplete(), i != 3);
    if (whole) expect_same(*whole, large);
  }
}

TEST(Frame, EncodeRefusesWhatIsAboveTheLimits) {
  const auto refusal = [](const Frame& frame, const FrameLimits& limits) {
    return message_of_error(ErrorKind::bad_input, [&] { (void)encode_frame(frame, limits, Checksum::on); });
  };
  FrameLimits limits;
  limits.frame = 64 + 40 + 15;
  EXPECT_THAT(refusal(with({message_of(std::string(16, 'x'))}), limits), HasSubstr("frame: wanted at most 15, found 16"));
  (void)encode_frame(with({message_of(std::string(15, 'x'))}), limits, Checksum::on);
  limits = {};
  limits.tensors = 1;
  EXPECT_THAT(refusal(with({message_of("x"), message_of("y")}), limits),
              HasSubstr("number of tensors: wanted at most 1, found 2"));
  limits = {};
  Frame rows = with({});
  rows.rows.resize(4097);
  EXPECT_THAT(refusal(rows, limits), HasSubstr("number of rows: wanted at most 4096, found 4097"));
  limits.rows = 100'000;
  rows.rows.resize(70'000);
  EXPECT_THAT(refusal(rows, limits), HasSubstr("number of rows: wanted at most 65535, found 70000"));
  limits = {};
  limits.header = 100;
  EXPECT_THAT(refusal(with({message_of("x")}), limits), HasSubstr("header length: wanted at most 100, found 104"));
  limits = {};
  limits.chunk = 7;
  EXPECT_THAT(refusal(with({message_of("12345678")}), limits), HasSubstr("chunk: wanted at least 8 bytes, found 7"));
}

TEST(Frame, EncodeRefusesWhatTheProtocolDoesNotHave) {
  const auto refusal = [](const Frame& frame) {
    return message_of_error(ErrorKind::bad_input, [&] { (void)encode_frame(frame, {}, Checksum::on); });
  };
  Frame frame = with({});
  frame.rows.resize(2);
  frame.rows[1].phase = 4;
  EXPECT_THAT(refusal(frame), HasSubstr("row 1: phase: wanted 0 to 3, found 4"));
  frame.rows[1] = {};
  frame.rows[1].flags = 4;
  EXPECT_THAT(refusal(frame), HasSubstr("row 1: flags: wanted bits of 0x3, found 0x4"));
  FrameTensor huge;
  huge.view.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(refusal(with({huge})),
              HasSubstr("tensor 0: wanted a size that fits 63 bits, found F32 [1099511627776, 1099511627776]"));
  huge.view.shape = {int64_t{1} << 60, 1};
  EXPECT_THAT(refusal(with({huge, huge})), HasSubstr("63 bits"));
  FrameTensor odd = message_of("x");
  odd.kind = static_cast<TensorKind>(8);
  EXPECT_THAT(refusal(with({odd})), HasSubstr("tensor 0: kind: wanted 0 to 7, found 8"));
}

TEST(Frame, AMessageIsTheOnlyOne) {
  const auto refusal = [](const Frame& frame) {
    return message_of_error(ErrorKind::bad_input, [&] { (void)frame.message(); });
  };
  EXPECT_EQ(std::string(with({cache(pattern(DType::u8, {3})), message_of("the one")}).message()), "the one");
  EXPECT_THAT(refusal(with({})), HasSubstr("message: wanted one, found none"));
  EXPECT_THAT(refusal(with({message_of("a"), message_of("b")})), HasSubstr("message: wanted one, found more"));
  EXPECT_THAT(refusal(with({FrameTensor::of(TensorKind::message, pattern(DType::i8, {3}))})),
              HasSubstr("message: wanted U8 [n], found I8 [3]"));
}

TEST(Frame, ACopyOfAMessageNeedsItsRoom) {
  const EncodedMessage message = encode_frame(with({message_of("x")}), {}, Checksum::on).front();
  EXPECT_EQ(message.bytes(), 64 + 40 + 1);
  std::vector<std::byte> room(100);
  EXPECT_THAT(message_of_error(ErrorKind::internal, [&] { message.copy_to(room); }), HasSubstr("105"));
}

}  // namespace
}  // namespace weft
