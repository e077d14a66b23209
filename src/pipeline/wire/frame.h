// The unit of the wire protocol: a header, a table of sequences, a table of tensors, and their bytes (distributed.md 5.5).
//
//     Frame frame;
//     frame.type = FrameType::payload;
//     frame.step = 7;
//     frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, std::make_shared<const Tensor>(pack_boundary(...))));
//     for (const EncodedMessage& message : encode_frame(frame, limits, Checksum::on)) ...   // no tensor byte is copied
//     std::optional<Frame> same = decoder.add(received, owner);                              // looks into `received`
//
// Little-endian throughout; all offsets in the tables are multiples of 8. Tensor bytes travel as they are, in the type they
// have: nothing is converted on the way. Tensors stand in the payload in the order of their entries, each at the next multiple
// of 8, with zeros between them and nothing behind the last one.
//
// Tensors of a payload frame may be LZ4 blocks ("stored length" is the block's, "logical length" the tensor's); the header says
// that some are. A decoded frame has the tensors themselves.
//
// A payload larger than a chunk travels in several messages. All have the whole header; "payload length" is that of the whole
// frame in each, "payload checksum" that of the message's own bytes. The first has the tables, the others have none. All chunks
// but the last are of one size, a multiple of 8. A frame in one message may come between the chunks of another frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "tensor/tensor.h"

namespace weft {

inline constexpr uint16_t kWireMajor = 1;
inline constexpr uint16_t kWireMinor = 0;
inline constexpr uint16_t kCoordinator = 0xFFFF;  // in place of a stage's number

enum class FrameType : uint16_t {
  step = 1,     // coordinator -> stage: a decision (message)
  payload = 2,  // stage k -> k + 1: a boundary
  tokens = 3,   // stage -> coordinator: what came of a decision (message, logits)
  logits = 4,   // reserved
  credit = 5,   // receiver -> sender: further payload frames are accepted
  abort = 6,    // in place of the payload of a step that failed (message)
  ping = 7,
  pong = 8,
  control = 9,  // handshake, loading, status (message)
};

enum class TensorKind : uint8_t {
  hidden = 0,  // a boundary, [rows, planes * D]
  sealed = 1,  // the same where plane 0 is a sealed block (ruling R1)
  token_ids = 2,
  positions = 3,
  embeddings = 4,
  logits = 5,
  cache = 6,
  message = 7,  // U8 [n]: an encoded message of proto/weft.proto
};

// 32 bytes on the wire.
struct SequenceRow {
  uint64_t sequence = 0;
  uint32_t first_position = 0;
  uint32_t count = 0;
  uint32_t row_offset = 0;
  uint16_t phase = 0;  // 0 prefill, 1 last prefill chunk, 2 decode, 3 verify
  uint16_t flags = 0;  // bit 0: sample this row, bit 1: its token arrives by loop-back
  uint64_t generation = 0;

  friend bool operator==(const SequenceRow&, const SequenceRow&) = default;
};

struct FrameTensor {
  TensorKind kind = TensorKind::hidden;
  TensorView view;  // of memory that `owner` keeps
  std::shared_ptr<const void> owner;

  [[nodiscard]] static FrameTensor of(TensorKind kind, std::shared_ptr<const Tensor> tensor);
  [[nodiscard]] static FrameTensor message(std::shared_ptr<const std::string> bytes);
};

struct Frame {
  FrameType type = FrameType::control;
  uint32_t epoch = 0;
  uint16_t source = kCoordinator;
  uint16_t destination = kCoordinator;
  uint64_t step = 0;  // of a credit frame: how many further payload frames
  uint32_t micro_batch = 0;
  std::vector<SequenceRow> rows;
  std::vector<FrameTensor> tensors;

  // Of the payload on the wire without compression: the tensors, and what aligns them. Throws bad_input when that does not fit
  // 63 bits.
  [[nodiscard]] int64_t payload_bytes() const;
  // The bytes of the only message; bad_input when there is none or more than one, or it is not U8 [n].
  [[nodiscard]] std::string_view message() const;
};

// Most that a reader accepts (distributed.md 5.11).
struct FrameLimits {
  int64_t frame = int64_t{1} << 30;  // bytes of a whole frame
  int64_t chunk = int64_t{4} << 20;  // payload bytes of one message
  int64_t header = int64_t{1} << 20;
  int64_t tensors = 64;
  int64_t rows = 4096;
};

enum class Checksum : uint8_t { off, on };               // of the payload; the header always has one
enum class Compression : uint8_t { none = 0, lz4 = 1 };  // of the tensors of payload frames; lossless

// Codes of distributed.md 5.6: UInt8 is 6, UInt32 is 9. Throws unsupported naming the type that has no code.
[[nodiscard]] uint8_t wire_code(DType dtype);
// Throws bad_input naming a code without a type here ("int4 packed" (8), "e8m0" (16), or the number).
[[nodiscard]] DType dtype_of_wire_code(uint8_t code);

// Bytes to send, in order: `head` owns header and tables; parts look at the frame's tensors and padding.
struct EncodedMessage {
  std::vector<std::byte> head;
  std::vector<FrameTensor> parts;  // views only: dtype and shape mean nothing, U8 [n]

  [[nodiscard]] int64_t bytes() const;
  [[nodiscard]] int64_t payload_bytes() const;  // without the head
  // `out` has bytes() bytes.
  void copy_to(std::span<std::byte> out) const;
};

// One message, or several when the payload is larger than `limits.chunk`. Throws bad_input for a frame above `limits` (before
// compression), and for a phase, a row flag or a kind that the protocol does not have. With lz4 each tensor of a payload frame
// that gets smaller is a block; when the payload does not get smaller by that, the frame is what it is without compression.
[[nodiscard]] std::vector<EncodedMessage> encode_frame(const Frame& frame, const FrameLimits& limits, Checksum checksum,
                                                       Compression compression = Compression::none);

// Puts the messages of one stream together again.
class FrameDecoder {
 public:
  explicit FrameDecoder(const FrameLimits& limits) : limits_(limits) {}

  // A whole frame, or nothing while chunks of it are missing. `bytes` is one message; the frame's tensors look into it (or into
  // memory of the decoder, for chunks, for a payload that is not aligned and for tensors that were compressed) and keep its
  // owner. Checks, in this order: magic, versions, limits, header checksum, table bounds, product(dims) * size == length, total
  // <= payload, all tensors <= the limit of a frame, chunk order, payload checksum, and that each LZ4 block holds its tensor.
  // Throws bad_input naming the field, wanted and found; the stream is of no further use then.
  //
  // A peer of a newer minor version may send types of frame that are unknown here: these are nothing, and counted. Its unknown
  // flags and the ends of its tables are left unread.
  [[nodiscard]] std::optional<Frame> add(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner);

  [[nodiscard]] bool incomplete() const { return partial_ != nullptr; }  // chunks of a frame are missing
  [[nodiscard]] int64_t ignored() const { return ignored_; }             // messages of unknown types

 private:
  struct Partial;
  struct Header;

  [[nodiscard]] Header read_header(std::span<const std::byte> bytes) const;
  [[nodiscard]] std::optional<Frame> add_chunk(const Header& header, std::span<const std::byte> bytes);

  FrameLimits limits_;
  std::shared_ptr<Partial> partial_;
  int64_t ignored_ = 0;
};

}  // namespace weft
