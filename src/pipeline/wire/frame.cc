#include "pipeline/wire/frame.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "pipeline/wire/crc32c.h"
#include "pipeline/wire/lz4_block.h"
#include "pipeline/wire/wire_layout.h"

namespace weft {
namespace {

using namespace wire_layout;

constexpr std::string_view kPlace = "frame";

struct Code {
  DType dtype;
  uint8_t code;
};

constexpr std::array kCodes = {
    Code{DType::f32, 0},  Code{DType::f16, 1},  Code{DType::bf16, 2},    Code{DType::i32, 3},      Code{DType::i16, 4},
    Code{DType::i8, 5},   Code{DType::u8, 6},   Code{DType::boolean, 7}, Code{DType::u32, 9},      Code{DType::u16, 10},
    Code{DType::i64, 11}, Code{DType::u64, 12}, Code{DType::f64, 13},    Code{DType::f8_e4m3, 14}, Code{DType::f8_e5m2, 15},
};
constexpr uint8_t kInt4Packed = 8;
constexpr uint8_t kE8M0 = 16;

// Zeros between tensors.
constexpr std::array<std::byte, kAlignment> kPadding{};

int64_t aligned(int64_t bytes) {
  constexpr auto kMask = static_cast<int64_t>(kAlignment) - 1;
  int64_t up = 0;
  if (__builtin_add_overflow(bytes, kMask, &up))
    fail(ErrorKind::bad_input, kPlace, "payload length: wanted what fits 63 bits, found more");
  return up & ~kMask;
}

int64_t bytes_of(const TensorView& view, size_t index) {
  const std::optional<int64_t> elements = view.shape.checked_elements();
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, size_of(view.dtype), &bytes)) {
    fail(ErrorKind::bad_input, kPlace, "tensor {}: wanted a size that fits 63 bits, found {} {}", index, view.dtype,
         view.shape);
  }
  return bytes;
}

// Offsets of the tensors in the payload; the last element is the payload's length.
std::vector<int64_t> offsets_of(std::span<const FrameTensor> tensors) {
  std::vector<int64_t> offsets;
  offsets.reserve(tensors.size() + 1);
  int64_t end = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t offset = aligned(end);
    offsets.push_back(offset);
    if (__builtin_add_overflow(offset, bytes_of(tensors[i].view, i), &end))
      fail(ErrorKind::bad_input, kPlace, "payload length: wanted what fits 63 bits, found more");
  }
  offsets.push_back(end);
  return offsets;
}

void require_at_most(std::string_view field, int64_t most, int64_t found) {
  if (found > most) fail(ErrorKind::bad_input, kPlace, "{}: wanted at most {}, found {}", field, most, found);
}

void put_row(std::byte* at, const SequenceRow& row, size_t index) {
  if (row.phase > kLastPhase)
    fail(ErrorKind::bad_input, kPlace, "row {}: phase: wanted 0 to {}, found {}", index, kLastPhase, row.phase);
  if ((row.flags & ~kKnownRowFlags) != 0)
    fail(ErrorKind::bad_input, kPlace, "row {}: flags: wanted bits of {:#x}, found {:#x}", index, kKnownRowFlags, row.flags);
  put(at + kRowSequenceAt, row.sequence);
  put(at + kRowPositionAt, row.first_position);
  put(at + kRowCountOfTokensAt, row.count);
  put(at + kRowOffsetAt, row.row_offset);
  put(at + kRowPhaseAt, row.phase);
  put(at + kRowFlagsAt, row.flags);
  put(at + kRowGenerationAt, row.generation);
}

size_t entry_bytes(const FrameTensor& tensor) {
  return kTensorBytes + static_cast<size_t>(tensor.view.shape.rank()) * kDimensionBytes;
}

std::span<const std::byte> bytes_of(const FrameTensor& part) {
  return {part.view.data, static_cast<size_t>(part.view.bytes())};
}

// What of a tensor travels: its bytes, or a block that holds them.
struct Stored {
  std::vector<FrameTensor> tensors;  // U8 [n] where encodings says so, else the frame's
  std::vector<uint8_t> encodings;
  std::vector<int64_t> offsets;  // as offsets_of()
};

Stored stored_raw(const Frame& frame) {
  return {frame.tensors, std::vector<uint8_t>(frame.tensors.size(), kRawEncoding), offsets_of(frame.tensors)};
}

Stored stored_lz4(const Frame& frame) {
  Stored made{frame.tensors, std::vector<uint8_t>(frame.tensors.size(), kRawEncoding), {}};
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    std::optional<Tensor> block = lz4_compress(bytes_of(frame.tensors[i]));
    if (!block) continue;
    made.tensors[i] = FrameTensor::of(frame.tensors[i].kind, std::make_shared<const Tensor>(std::move(*block)));
    made.encodings[i] = kLz4Encoding;
  }
  made.offsets = offsets_of(made.tensors);
  return made;
}

std::byte* put_tensor(std::byte* at, const FrameTensor& tensor, size_t index, int64_t offset, int64_t stored,
                      uint8_t encoding) {
  const auto kind = static_cast<uint8_t>(tensor.kind);
  if (kind > kLastTensorKind)
    fail(ErrorKind::bad_input, kPlace, "tensor {}: kind: wanted 0 to {}, found {}", index, kLastTensorKind, kind);
  const TensorView& view = tensor.view;
  put(at + kTensorKindAt, kind);
  put(at + kTensorDTypeAt, wire_code(view.dtype));
  put(at + kTensorRankAt, static_cast<uint8_t>(view.shape.rank()));
  put(at + kTensorEncodingAt, encoding);
  put(at + kTensorReservedAt, uint32_t{0});
  put(at + kTensorOffsetAt, offset);
  put(at + kTensorStoredAt, stored);
  put(at + kTensorLogicalAt, view.bytes());
  at += kTensorBytes;
  for (const int64_t extent : view.shape.extents()) {
    put(at, extent);
    at += kDimensionBytes;
  }
  return at;
}

// The header and tables of a frame, or of one of its chunks, without what differs between chunks and without checksums.
std::vector<std::byte> head_of(const Frame& frame, size_t bytes, int64_t payload, bool with_tables) {
  std::vector<std::byte> head(bytes);
  std::byte* const at = head.data();
  std::memcpy(at, kMagic.data(), kMagic.size());
  put(at + kMajorAt, kWireMajor);
  put(at + kMinorAt, kWireMinor);
  put(at + kTypeAt, static_cast<uint16_t>(frame.type));
  put(at + kHeaderLengthAt, static_cast<uint32_t>(bytes));
  put(at + kPayloadLengthAt, payload);
  put(at + kEpochAt, frame.epoch);
  put(at + kSourceAt, frame.source);
  put(at + kDestinationAt, frame.destination);
  put(at + kStepAt, frame.step);
  put(at + kMicroBatchAt, frame.micro_batch);
  put(at + kTensorCountAt, static_cast<uint16_t>(with_tables ? frame.tensors.size() : 0));
  put(at + kRowCountAt, static_cast<uint16_t>(with_tables ? frame.rows.size() : 0));
  return head;
}

// The payload as pieces of memory.
class Pieces {
 public:
  explicit Pieces(const Stored& stored) {
    int64_t end = 0;
    for (size_t i = 0; i < stored.tensors.size(); ++i) {
      const FrameTensor& tensor = stored.tensors[i];
      add(kPadding.data(), stored.offsets[i] - end, nullptr);
      add(tensor.view.data, tensor.view.bytes(), tensor.owner);
      end = stored.offsets[i] + tensor.view.bytes();
    }
  }

  // The next `bytes` of the payload.
  [[nodiscard]] std::vector<FrameTensor> take(int64_t bytes) {
    std::vector<FrameTensor> taken;
    while (bytes > 0) {
      const FrameTensor& piece = pieces_[next_];
      const int64_t count = std::min(bytes, piece.view.bytes() - used_);
      taken.push_back({TensorKind::message, {DType::u8, {count}, piece.view.data + used_}, piece.owner});
      bytes -= count;
      used_ += count;
      if (used_ == piece.view.bytes()) {
        ++next_;
        used_ = 0;
      }
    }
    return taken;
  }

 private:
  void add(const std::byte* data, int64_t bytes, std::shared_ptr<const void> owner) {
    if (bytes > 0) pieces_.push_back({TensorKind::message, {DType::u8, {bytes}, data}, std::move(owner)});
  }

  std::vector<FrameTensor> pieces_;
  size_t next_ = 0;
  int64_t used_ = 0;  // of pieces_[next_]
};

void put_checksums(EncodedMessage& message, Checksum checksum) {
  std::byte* const at = message.head.data();
  if (checksum == Checksum::on) {
    uint32_t crc = 0;
    for (const FrameTensor& part : message.parts) crc = crc32c(bytes_of(part), crc);
    put(at + kFlagsAt, static_cast<uint16_t>(get<uint16_t>(at + kFlagsAt) | kFlagChecksum));
    put(at + kPayloadChecksumAt, crc);
  }
  put(at + kHeaderChecksumAt, crc32c(message.head));
}

}  // namespace

uint8_t wire_code(DType dtype) {
  for (const Code& known : kCodes) {
    if (known.dtype == dtype) return known.code;
  }
  fail(ErrorKind::unsupported, kPlace, "dtype: wanted a type with a code on the wire, found type number {}",
       static_cast<unsigned>(dtype));
}

DType dtype_of_wire_code(uint8_t code) {
  for (const Code& known : kCodes) {
    if (known.code == code) return known.dtype;
  }
  constexpr std::string_view kWanted = "wanted 0 to 7 or 9 to 15";
  if (code == kInt4Packed) fail(ErrorKind::bad_input, kPlace, "dtype code: {}, found {} (int4 packed)", kWanted, code);
  if (code == kE8M0) fail(ErrorKind::bad_input, kPlace, "dtype code: {}, found {} (e8m0)", kWanted, code);
  fail(ErrorKind::bad_input, kPlace, "dtype code: {}, found {}", kWanted, code);
}

FrameTensor FrameTensor::of(TensorKind kind, std::shared_ptr<const Tensor> tensor) {
  const TensorView view = tensor->view();
  return {kind, view, std::move(tensor)};
}

FrameTensor FrameTensor::message(std::shared_ptr<const std::string> bytes) {
  const auto* const data = reinterpret_cast<const std::byte*>(bytes->data());
  return {TensorKind::message, {DType::u8, {static_cast<int64_t>(bytes->size())}, data}, std::move(bytes)};
}

int64_t Frame::payload_bytes() const { return offsets_of(tensors).back(); }

std::string_view Frame::message() const {
  const FrameTensor* found = nullptr;
  for (const FrameTensor& tensor : tensors) {
    if (tensor.kind != TensorKind::message) continue;
    if (found != nullptr) fail(ErrorKind::bad_input, kPlace, "message: wanted one, found more");
    found = &tensor;
  }
  if (found == nullptr) fail(ErrorKind::bad_input, kPlace, "message: wanted one, found none");
  const TensorView& view = found->view;
  if (view.dtype != DType::u8 || view.shape.rank() != 1)
    fail(ErrorKind::bad_input, kPlace, "message: wanted U8 [n], found {} {}", view.dtype, view.shape);
  return {reinterpret_cast<const char*>(view.data), static_cast<size_t>(view.bytes())};
}

int64_t EncodedMessage::bytes() const { return static_cast<int64_t>(head.size()) + payload_bytes(); }

int64_t EncodedMessage::payload_bytes() const {
  int64_t total = 0;
  for (const FrameTensor& part : parts) total += part.view.bytes();
  return total;
}

void EncodedMessage::copy_to(std::span<std::byte> out) const {
  if (static_cast<int64_t>(out.size()) != bytes())
    fail(ErrorKind::internal, kPlace, "copy of a message: wanted room for {} bytes, found {}", bytes(), out.size());
  std::byte* at = std::copy(head.begin(), head.end(), out.data());
  for (const FrameTensor& part : parts) {
    const std::span<const std::byte> piece = bytes_of(part);
    at = std::copy(piece.begin(), piece.end(), at);
  }
}

std::vector<EncodedMessage> encode_frame(const Frame& frame, const FrameLimits& limits, Checksum checksum,
                                         Compression compression) {
  constexpr int64_t kMostInTable = UINT16_MAX;
  require_at_most("number of tensors", std::min(limits.tensors, kMostInTable), static_cast<int64_t>(frame.tensors.size()));
  require_at_most("number of rows", std::min(limits.rows, kMostInTable), static_cast<int64_t>(frame.rows.size()));
  Stored stored = stored_raw(frame);
  size_t tables = kHeaderBytes + frame.rows.size() * kRowBytes;
  for (const FrameTensor& tensor : frame.tensors) tables += entry_bytes(tensor);
  const auto header_bytes = static_cast<int64_t>(tables);
  require_at_most("header length", limits.header, header_bytes);
  require_at_most("frame", limits.frame - header_bytes, stored.offsets.back());
  bool compressed = false;
  if (compression == Compression::lz4 && frame.type == FrameType::payload) {
    Stored smaller = stored_lz4(frame);
    compressed = smaller.offsets.back() < stored.offsets.back();
    if (compressed) stored = std::move(smaller);
  }
  const int64_t payload = stored.offsets.back();

  std::vector<std::byte> first = head_of(frame, tables, payload, true);
  std::byte* at = first.data() + kHeaderBytes;
  for (size_t i = 0; i < frame.rows.size(); ++i, at += kRowBytes) put_row(at, frame.rows[i], i);
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    at = put_tensor(at, frame.tensors[i], i, stored.offsets[i], stored.tensors[i].view.bytes(), stored.encodings[i]);
  }

  constexpr auto kStep = static_cast<int64_t>(kAlignment);
  const bool chunked = payload > limits.chunk;
  const int64_t chunk = chunked ? limits.chunk / kStep * kStep : payload;
  if (chunked && chunk == 0)
    fail(ErrorKind::bad_input, kPlace, "chunk: wanted at least {} bytes, found {}", kStep, limits.chunk);
  const int64_t count = chunked ? (payload - 1) / chunk + 1 : 1;
  require_at_most("number of chunks", UINT32_MAX, count);

  Pieces pieces(stored);
  std::vector<EncodedMessage> messages(static_cast<size_t>(count));
  messages.front().head = std::move(first);
  for (int64_t i = 0; i < count; ++i) {
    EncodedMessage& message = messages[static_cast<size_t>(i)];
    if (i > 0) message.head = head_of(frame, kHeaderBytes, payload, false);
    uint16_t flags = chunked ? kFlagChunked : 0;
    if (chunked && i == count - 1) flags |= kFlagLastChunk;
    if (compressed) flags |= kFlagCompressed;
    put(message.head.data() + kFlagsAt, flags);
    put(message.head.data() + kChunkIndexAt, static_cast<uint32_t>(i));
    put(message.head.data() + kChunkCountAt, static_cast<uint32_t>(count));
    message.parts = pieces.take(std::min(chunk, payload - i * chunk));
    put_checksums(message, checksum);
  }
  return messages;
}

}  // namespace weft
