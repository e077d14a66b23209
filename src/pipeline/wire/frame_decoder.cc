#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "pipeline/wire/crc32c.h"
#include "pipeline/wire/frame.h"
#include "pipeline/wire/lz4_block.h"
#include "pipeline/wire/wire_layout.h"

namespace weft {
namespace {

using namespace wire_layout;

constexpr std::string_view kPlace = "frame";

template <class Wanted, class Found>
[[noreturn]] void refuse(std::string_view field, const Wanted& wanted, const Found& found) {
  fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found {}", field, wanted, found);
}

void require_at_most(std::string_view field, uint64_t most, uint64_t found) {
  if (found > most) refuse(field, fmt::format("at most {}", most), found);
}

template <class T>
void require_equal(std::string_view field, const T& wanted, const T& found) {
  if (wanted != found) refuse(field, wanted, found);
}

template <class T>
void require_equal_checksum(std::string_view field, T wanted, T found) {
  if (wanted != found) refuse(field, fmt::format("{:#010x}", wanted), fmt::format("{:#010x}", found));
}

// A limit as it is compared; a negative one accepts nothing.
uint64_t limit(int64_t most) { return static_cast<uint64_t>(std::max<int64_t>(most, 0)); }

SequenceRow read_row(const std::byte* at, size_t index, bool newer) {
  SequenceRow row;
  row.sequence = get<uint64_t>(at + kRowSequenceAt);
  row.first_position = get<uint32_t>(at + kRowPositionAt);
  row.count = get<uint32_t>(at + kRowCountOfTokensAt);
  row.row_offset = get<uint32_t>(at + kRowOffsetAt);
  row.phase = get<uint16_t>(at + kRowPhaseAt);
  row.flags = get<uint16_t>(at + kRowFlagsAt);
  row.generation = get<uint64_t>(at + kRowGenerationAt);
  if (row.phase > kLastPhase) refuse(fmt::format("row {}: phase", index), fmt::format("0 to {}", kLastPhase), row.phase);
  if (!newer && (row.flags & ~kKnownRowFlags) != 0) {
    refuse(fmt::format("row {}: flags", index), fmt::format("bits of {:#x}", kKnownRowFlags), fmt::format("{:#x}", row.flags));
  }
  row.flags &= kKnownRowFlags;
  return row;
}

// One entry of the tensor table: the tensor, with its offset in place of its memory.
struct Entry {
  TensorKind kind;
  DType dtype;
  Shape shape;
  uint64_t offset;
  uint64_t stored;  // bytes in the payload
  uint64_t bytes;
  bool compressed;
};

// What the header says of all tensors.
struct TableForm {
  uint64_t payload = 0;  // bytes
  uint64_t most = 0;     // bytes of all tensors, once they are what they were
  bool compressed = false;
  bool newer = false;
};

// Whether `made.stored` can be the length of its block.
void check_lz4_lengths(const Entry& made, const std::function<std::string(std::string_view)>& field) {
  require_at_most(field("logical length of an LZ4 block"), static_cast<uint64_t>(kMostLz4Bytes), made.bytes);
  if (made.stored == 0 || made.stored >= made.bytes)
    refuse(field("stored length"), fmt::format("1 to {} (LZ4)", std::max<uint64_t>(made.bytes, 1) - 1), made.stored);
  if (made.bytes / static_cast<uint64_t>(kMostLz4Ratio) > made.stored) {
    refuse(field("logical length"), fmt::format("at most {} for each byte of an LZ4 block of {}", kMostLz4Ratio, made.stored),
           made.bytes);
  }
}

// `end` is where the tensor before ends. Moves `at` behind the entry.
Entry read_entry(std::span<const std::byte> table, size_t& at, size_t index, uint64_t end, const TableForm& form) {
  const auto field = [&](std::string_view name) { return fmt::format("tensor {}: {}", index, name); };
  if (table.size() - at < kTensorBytes)
    refuse(field("entry"), fmt::format("{} bytes of the header", kTensorBytes), table.size() - at);
  const std::byte* const entry = table.data() + at;
  const auto kind = get<uint8_t>(entry + kTensorKindAt);
  const auto rank = get<uint8_t>(entry + kTensorRankAt);
  const auto encoding = get<uint8_t>(entry + kTensorEncodingAt);
  const auto reserved = get<uint32_t>(entry + kTensorReservedAt);
  if (kind > kLastTensorKind) refuse(field("kind"), fmt::format("0 to {}", kLastTensorKind), kind);
  if (rank > Shape::kMaxRank) refuse(field("dimensions"), fmt::format("at most {}", Shape::kMaxRank), rank);
  if (!form.compressed && encoding != kRawEncoding) refuse(field("encoding"), fmt::format("{} (raw)", kRawEncoding), encoding);
  if (encoding > kLz4Encoding)
    refuse(field("encoding"), fmt::format("{} (raw) or {} (LZ4)", kRawEncoding, kLz4Encoding), encoding);
  if (!form.newer && reserved != 0) refuse(field("reserved"), 0, reserved);
  at += kTensorBytes;
  if (table.size() - at < rank * kDimensionBytes)
    refuse(field("dimensions"), fmt::format("{} bytes of the header", rank * kDimensionBytes), table.size() - at);

  std::array<int64_t, Shape::kMaxRank> extents{};
  for (size_t i = 0; i < rank; ++i) {
    const auto extent = get<uint64_t>(table.data() + at + i * kDimensionBytes);
    if (extent > static_cast<uint64_t>(INT64_MAX))
      refuse(field(fmt::format("dimension {}", i)), fmt::format("at most {}", INT64_MAX), extent);
    extents[i] = static_cast<int64_t>(extent);
  }
  at += rank * kDimensionBytes;
  Entry made{static_cast<TensorKind>(kind),
             dtype_of_wire_code(get<uint8_t>(entry + kTensorDTypeAt)),
             Shape(std::span<const int64_t>(extents.data(), rank)),
             get<uint64_t>(entry + kTensorOffsetAt),
             get<uint64_t>(entry + kTensorStoredAt),
             get<uint64_t>(entry + kTensorLogicalAt),
             encoding == kLz4Encoding};
  const std::optional<int64_t> elements = made.shape.checked_elements();
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, size_of(made.dtype), &bytes))
    refuse(field("dimensions"), "a size that fits 63 bits", fmt::format("{} {}", made.dtype, made.shape));
  if (made.bytes != static_cast<uint64_t>(bytes))
    refuse(field("logical length"), fmt::format("{} of {} {}", bytes, made.dtype, made.shape), made.bytes);
  if (made.compressed) {
    check_lz4_lengths(made, field);
  } else if (made.stored != made.bytes) {
    refuse(field("stored length"), fmt::format("{} (raw)", made.bytes), made.stored);
  }
  const uint64_t wanted = (end + kAlignment - 1) / kAlignment * kAlignment;
  if (made.offset != wanted)
    refuse(field("offset"), fmt::format("{} (behind the tensor before, aligned)", wanted), made.offset);
  if (made.offset > form.payload || made.stored > form.payload - made.offset) {
    refuse(field("end"), fmt::format("within the payload of {} bytes", form.payload),
           fmt::format("offset {} and {} bytes", made.offset, made.stored));
  }
  return made;
}

struct Tables {
  std::vector<SequenceRow> rows;
  std::vector<Entry> entries;
};

// `head` is the header with its tables, which has room for the rows and for entries without dimensions.
Tables read_tables(std::span<const std::byte> head, size_t rows, size_t tensors, const TableForm& form) {
  Tables tables;
  tables.rows.reserve(rows);
  tables.entries.reserve(tensors);
  size_t at = kHeaderBytes;
  for (size_t i = 0; i < rows; ++i, at += kRowBytes) tables.rows.push_back(read_row(head.data() + at, i, form.newer));
  uint64_t end = 0;
  uint64_t bytes = 0;  // each is at most 255 times the payload or below 2 GiB: the sum fits
  bool compressed = false;
  for (size_t i = 0; i < tensors; ++i) {
    tables.entries.push_back(read_entry(head, at, i, end, form));
    const Entry& entry = tables.entries.back();
    end = entry.offset + entry.stored;
    bytes += entry.bytes;
    compressed = compressed || entry.compressed;
    require_at_most("bytes of all tensors", form.most, bytes);
  }
  if (!form.newer) require_equal<uint64_t>("header length", at, head.size());
  require_equal("payload length", end, form.payload);
  if (form.compressed && !compressed)
    refuse("flags", "no compression where no tensor has any", fmt::format("{:#x}", kFlagCompressed));
  return tables;
}

void set_tensors(Frame& frame, const std::vector<Entry>& entries, const std::byte* payload,
                 const std::shared_ptr<const void>& owner) {
  frame.tensors.reserve(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (!entry.compressed) {
      frame.tensors.push_back({entry.kind, {entry.dtype, entry.shape, payload + entry.offset}, owner});
      continue;
    }
    auto whole = std::make_shared<Tensor>(Tensor::uninitialized(entry.dtype, entry.shape));
    if (!lz4_decompress({payload + entry.offset, entry.stored}, {whole->data(), entry.bytes})) {
      refuse(fmt::format("payload frame {} of epoch {}, tensor {}", frame.step, frame.epoch, i),
             fmt::format("an LZ4 block of {} bytes that holds {}", entry.stored, entry.bytes), "a corrupt one");
    }
    frame.tensors.push_back(FrameTensor::of(entry.kind, std::move(whole)));
  }
}

bool is_known(uint16_t type) {
  return type >= static_cast<uint16_t>(FrameType::step) && type <= static_cast<uint16_t>(FrameType::control);
}

}  // namespace

struct FrameDecoder::Header {
  Frame frame;  // without rows and tensors
  uint16_t type = 0;
  uint16_t flags = 0;
  size_t length = 0;
  uint64_t payload = 0;
  uint32_t chunk_index = 0;
  uint32_t chunk_count = 0;
  size_t tensors = 0;
  size_t rows = 0;
  uint32_t payload_checksum = 0;
  bool newer = false;

  [[nodiscard]] bool chunked() const { return (flags & kFlagChunked) != 0; }
  [[nodiscard]] bool compressed() const { return (flags & kFlagCompressed) != 0; }
  [[nodiscard]] uint64_t most_payload(const FrameLimits& limits) const {
    return limit(limits.frame) - std::min<uint64_t>(limit(limits.frame), length);
  }
  [[nodiscard]] TableForm form(const FrameLimits& limits) const { return {payload, most_payload(limits), compressed(), newer}; }

  void require_checksum(uint32_t found) const { require_equal_checksum("payload checksum", payload_checksum, found); }
  // Copies where the checksum is computed too.
  void copy(std::span<const std::byte> bytes, std::byte* out) const {
    if ((flags & kFlagChecksum) == 0) {
      if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
      return;
    }
    require_checksum(crc32c_copy(bytes, out));
  }
};

struct FrameDecoder::Partial {
  Header first;
  std::vector<Entry> entries;
  std::shared_ptr<Tensor> buffer;  // U8 [payload]
  uint64_t chunk = 0;              // bytes of each chunk but the last
  uint32_t next = 1;
};

FrameDecoder::Header FrameDecoder::read_header(std::span<const std::byte> bytes) const {
  if (bytes.size() < kHeaderBytes) refuse("message", fmt::format("at least {} bytes", kHeaderBytes), bytes.size());
  const std::byte* const at = bytes.data();
  if (std::memcmp(at, kMagic.data(), kMagic.size()) != 0) {
    refuse("magic", fmt::format("'{}'", std::string_view(kMagic.data(), kMagic.size())),
           fmt::format("'{}'", std::string_view(reinterpret_cast<const char*>(at), kMagic.size())));
  }
  require_equal("major version", kWireMajor, get<uint16_t>(at + kMajorAt));

  Header header;
  header.newer = get<uint16_t>(at + kMinorAt) > kWireMinor;
  header.type = get<uint16_t>(at + kTypeAt);
  header.flags = get<uint16_t>(at + kFlagsAt);
  header.length = get<uint32_t>(at + kHeaderLengthAt);
  header.payload = get<uint64_t>(at + kPayloadLengthAt);
  header.tensors = get<uint16_t>(at + kTensorCountAt);
  header.rows = get<uint16_t>(at + kRowCountAt);
  require_at_most("header length", std::min<uint64_t>(limit(limits_.header), bytes.size()), header.length);
  if (header.length < kHeaderBytes || header.length % kAlignment != 0)
    refuse("header length", fmt::format("a multiple of {}, at least {}", kAlignment, kHeaderBytes), header.length);
  require_at_most("frame: payload length", header.most_payload(limits_), header.payload);
  require_at_most("payload of one message", limit(limits_.chunk), bytes.size() - header.length);
  require_at_most("number of tensors", limit(limits_.tensors), header.tensors);
  require_at_most("number of rows", limit(limits_.rows), header.rows);

  uint32_t crc = crc32c(bytes.first(kHeaderChecksumAt));
  constexpr std::array<std::byte, sizeof(uint32_t)> kZero{};
  crc = crc32c(kZero, crc);
  crc = crc32c(bytes.subspan(kHeaderChecksumAt + sizeof(uint32_t), header.length - kHeaderChecksumAt - sizeof(uint32_t)), crc);
  require_equal_checksum("header checksum", crc, get<uint32_t>(at + kHeaderChecksumAt));

  header.payload_checksum = get<uint32_t>(at + kPayloadChecksumAt);
  header.chunk_index = get<uint32_t>(at + kChunkIndexAt);
  header.chunk_count = get<uint32_t>(at + kChunkCountAt);
  header.frame.type = static_cast<FrameType>(header.type);
  header.frame.epoch = get<uint32_t>(at + kEpochAt);
  header.frame.source = get<uint16_t>(at + kSourceAt);
  header.frame.destination = get<uint16_t>(at + kDestinationAt);
  header.frame.step = get<uint64_t>(at + kStepAt);
  header.frame.micro_batch = get<uint32_t>(at + kMicroBatchAt);
  return header;
}

std::optional<Frame> FrameDecoder::add(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner) {
  Header header = read_header(bytes);
  if (!is_known(header.type)) {
    if (!header.newer) refuse("frame type", "1 to 9", header.type);
    ++ignored_;
    return std::nullopt;
  }
  if (!header.newer && (header.flags & ~kKnownFlags) != 0)
    refuse("flags", fmt::format("bits of {:#x}", kKnownFlags), fmt::format("{:#x}", header.flags));
  if (header.compressed() && header.frame.type != FrameType::payload)
    refuse("flags", "compression in frames of type 2 alone", fmt::format("{:#x} in type {}", header.flags, header.type));
  if ((header.flags & kFlagOutOfBand) != 0) refuse("flags", "a payload in the frame", fmt::format("{:#x}", header.flags));
  if ((header.flags & kFlagChecksum) == 0 && header.payload_checksum != 0)
    refuse("payload checksum", "0, as the flags say that there is none", fmt::format("{:#010x}", header.payload_checksum));
  if (kHeaderBytes + header.rows * kRowBytes + header.tensors * kTensorBytes > header.length) {
    refuse("header length", fmt::format("room for {} rows and {} tensors", header.rows, header.tensors), header.length);
  }
  if (header.chunked()) return add_chunk(header, bytes);

  Frame frame = std::move(header.frame);
  Tables tables = read_tables(bytes.first(header.length), header.rows, header.tensors, header.form(limits_));
  frame.rows = std::move(tables.rows);
  const std::span<const std::byte> payload = bytes.subspan(header.length);
  require_equal<uint64_t>("bytes of the message behind the header", header.payload, payload.size());
  if ((header.flags & kFlagLastChunk) != 0) refuse("flags", "no last chunk of a frame without chunks", header.flags);
  if (header.chunk_index != 0 || header.chunk_count != 1) {
    refuse("chunk", "0 of 1 for a frame without chunks", fmt::format("{} of {}", header.chunk_index, header.chunk_count));
  }
  if (payload.empty() || reinterpret_cast<uintptr_t>(payload.data()) % kAlignment == 0) {
    if ((header.flags & kFlagChecksum) != 0) header.require_checksum(crc32c(payload));
    set_tensors(frame, tables.entries, payload.data(), owner);
  } else {
    // Typed views need aligned memory, and transports cut messages out of larger ones.
    auto copy = std::make_shared<Tensor>(Tensor::uninitialized(DType::u8, {static_cast<int64_t>(payload.size())}));
    header.copy(payload, copy->data());
    set_tensors(frame, tables.entries, copy->data(), copy);
  }
  return frame;
}

std::optional<Frame> FrameDecoder::add_chunk(const Header& header, std::span<const std::byte> bytes) {
  const std::span<const std::byte> part = bytes.subspan(header.length);
  const auto require_last_flag = [&] {
    const bool is_last = header.chunk_index + 1 == header.chunk_count;
    require_equal("flag of the last chunk", is_last, (header.flags & kFlagLastChunk) != 0);
  };
  if (!partial_) {
    Tables tables = read_tables(bytes.first(header.length), header.rows, header.tensors, header.form(limits_));
    require_equal("chunk index", uint32_t{0}, header.chunk_index);
    if (part.empty() || part.size() % kAlignment != 0 || part.size() >= header.payload) {
      refuse("bytes of the first chunk", fmt::format("a multiple of {} below the payload of {}", kAlignment, header.payload),
             part.size());
    }
    require_equal<uint64_t>("chunk count", (header.payload - 1) / part.size() + 1, header.chunk_count);
    require_last_flag();
    if ((header.flags & kFlagChecksum) != 0) header.require_checksum(crc32c(part));
    auto partial = std::make_shared<Partial>();
    partial->first = header;
    partial->first.frame.rows = std::move(tables.rows);
    partial->entries = std::move(tables.entries);
    partial->buffer = std::make_shared<Tensor>(Tensor::uninitialized(DType::u8, {static_cast<int64_t>(header.payload)}));
    partial->chunk = part.size();
    std::memcpy(partial->buffer->data(), part.data(), part.size());
    partial_ = std::move(partial);
    return std::nullopt;
  }

  Partial& partial = *partial_;
  const Header& first = partial.first;
  require_equal<size_t>("number of tensors of a later chunk", 0, header.tensors);
  require_equal<size_t>("number of rows of a later chunk", 0, header.rows);
  if (!header.newer) require_equal("header length of a later chunk", kHeaderBytes, header.length);
  const std::string field = fmt::format("chunk {}", partial.next);
  const auto same = [&](std::string_view what, const auto& wanted, const auto& found) {
    if (wanted != found) refuse(fmt::format("{}: {}", field, what), wanted, found);
  };
  same("index", partial.next, header.chunk_index);
  same("chunk count", first.chunk_count, header.chunk_count);
  same("payload length", first.payload, header.payload);
  same("compression", first.compressed(), header.compressed());
  same("frame type", first.type, header.type);
  same("epoch", first.frame.epoch, header.frame.epoch);
  same("source", first.frame.source, header.frame.source);
  same("destination", first.frame.destination, header.frame.destination);
  same("step", first.frame.step, header.frame.step);
  same("micro-batch", first.frame.micro_batch, header.frame.micro_batch);
  require_last_flag();
  const uint64_t offset = partial.chunk * partial.next;
  same("bytes", std::min(partial.chunk, first.payload - offset), uint64_t{part.size()});
  header.copy(part, partial.buffer->data() + offset);
  if (++partial.next < first.chunk_count) return std::nullopt;
  const std::shared_ptr<Partial> whole = std::exchange(partial_, nullptr);
  Frame frame = std::move(whole->first.frame);
  set_tensors(frame, whole->entries, whole->buffer->data(), whole->buffer);
  return frame;
}

}  // namespace weft
