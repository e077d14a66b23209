// LZ4 blocks (the format without frames), for tensors on the wire (distributed.md 5.5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/tensor.h"

namespace weft {

inline constexpr int64_t kMostLz4Bytes = 0x7E000000;  // that one block holds
inline constexpr int64_t kMostLz4Ratio = 255;         // bytes that one byte of a block stands for, at most

// U8 [n], with n below the size of `bytes`; nothing when a block would not be smaller, or for more than kMostLz4Bytes.
[[nodiscard]] std::optional<Tensor> lz4_compress(std::span<const std::byte> bytes);

// Fills `out` exactly; false for a block that is corrupt, or holds fewer or more bytes. Reads and writes nothing beyond both.
[[nodiscard]] bool lz4_decompress(std::span<const std::byte> block, std::span<std::byte> out);

}  // namespace weft
