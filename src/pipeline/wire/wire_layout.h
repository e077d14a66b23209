// Where the fields of a frame's header and tables stand (distributed.md 5.5). For frame.cc, frame_decoder.cc and their tests.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace weft::wire_layout {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and tensors travel as they are");

inline constexpr std::array<char, 4> kMagic = {'P', 'P', 'W', '1'};

inline constexpr size_t kAlignment = 8;     // of header length, offsets and chunks
inline constexpr size_t kHeaderBytes = 64;  // without tables
inline constexpr size_t kRowBytes = 32;
inline constexpr size_t kTensorBytes = 32;  // without dimensions
inline constexpr size_t kDimensionBytes = 8;

// Offsets in the header.
inline constexpr size_t kMajorAt = 4;
inline constexpr size_t kMinorAt = 6;
inline constexpr size_t kTypeAt = 8;
inline constexpr size_t kFlagsAt = 10;
inline constexpr size_t kHeaderLengthAt = 12;
inline constexpr size_t kPayloadLengthAt = 16;
inline constexpr size_t kEpochAt = 24;
inline constexpr size_t kSourceAt = 28;
inline constexpr size_t kDestinationAt = 30;
inline constexpr size_t kStepAt = 32;
inline constexpr size_t kMicroBatchAt = 40;
inline constexpr size_t kChunkIndexAt = 44;
inline constexpr size_t kChunkCountAt = 48;
inline constexpr size_t kTensorCountAt = 52;
inline constexpr size_t kRowCountAt = 54;
inline constexpr size_t kHeaderChecksumAt = 56;
inline constexpr size_t kPayloadChecksumAt = 60;

// Offsets in a sequence row.
inline constexpr size_t kRowSequenceAt = 0;
inline constexpr size_t kRowPositionAt = 8;
inline constexpr size_t kRowCountOfTokensAt = 12;
inline constexpr size_t kRowOffsetAt = 16;
inline constexpr size_t kRowPhaseAt = 20;
inline constexpr size_t kRowFlagsAt = 22;
inline constexpr size_t kRowGenerationAt = 24;

// Offsets in a tensor entry.
inline constexpr size_t kTensorKindAt = 0;
inline constexpr size_t kTensorDTypeAt = 1;
inline constexpr size_t kTensorRankAt = 2;
inline constexpr size_t kTensorEncodingAt = 3;
inline constexpr size_t kTensorReservedAt = 4;
inline constexpr size_t kTensorOffsetAt = 8;
inline constexpr size_t kTensorStoredAt = 16;
inline constexpr size_t kTensorLogicalAt = 24;

// Flags of a header.
inline constexpr uint16_t kFlagChecksum = 1U << 0U;
inline constexpr uint16_t kFlagChunked = 1U << 1U;
inline constexpr uint16_t kFlagLastChunk = 1U << 2U;
inline constexpr uint16_t kFlagCompressed = 1U << 3U;
inline constexpr uint16_t kFlagOutOfBand = 1U << 4U;
inline constexpr uint16_t kKnownFlags = 0x1F;

inline constexpr uint16_t kLastPhase = 3;
inline constexpr uint16_t kKnownRowFlags = 0x3;
inline constexpr uint8_t kLastTensorKind = 7;
inline constexpr uint8_t kRawEncoding = 0;
inline constexpr uint8_t kLz4Encoding = 1;

template <class T>
[[nodiscard]] T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

}  // namespace weft::wire_layout
