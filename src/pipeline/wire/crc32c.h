// CRC32C (Castagnoli) of RFC 3720: the checksum of the wire protocol.
//
//     crc32c(bytes) == 0xE3069283   // of "123456789"
//     crc32c(tail, crc32c(head))    // of both, one after the other
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

[[nodiscard]] uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Copies `bytes` to `out`, of at least the same size, and returns their checksum; block by block, so that memory is read once.
[[nodiscard]] uint32_t crc32c_copy(std::span<const std::byte> bytes, std::byte* out, uint32_t before = 0);

}  // namespace weft
