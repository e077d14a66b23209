#include "pipeline/wire/lz4_block.h"

#include <cstring>
#include <lz4.h>

namespace weft {

static_assert(kMostLz4Bytes == LZ4_MAX_INPUT_SIZE);

std::optional<Tensor> lz4_compress(std::span<const std::byte> bytes) {
  if (bytes.size() < 2 || bytes.size() > static_cast<size_t>(kMostLz4Bytes)) return std::nullopt;
  // Room for less than it was: what does not fit is not worth a block.
  Tensor room = Tensor::uninitialized(DType::u8, {static_cast<int64_t>(bytes.size()) - 1});
  const int stored = LZ4_compress_default(reinterpret_cast<const char*>(bytes.data()), reinterpret_cast<char*>(room.data()),
                                          static_cast<int>(bytes.size()), static_cast<int>(room.bytes()));
  if (stored <= 0) return std::nullopt;
  Tensor block = Tensor::uninitialized(DType::u8, {stored});
  std::memcpy(block.data(), room.data(), static_cast<size_t>(stored));
  return block;
}

bool lz4_decompress(std::span<const std::byte> block, std::span<std::byte> out) {
  if (block.size() > static_cast<size_t>(kMostLz4Bytes) || out.size() > static_cast<size_t>(kMostLz4Bytes)) return false;
  const int found = LZ4_decompress_safe(reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(out.data()),
                                        static_cast<int>(block.size()), static_cast<int>(out.size()));
  return found >= 0 && static_cast<size_t>(found) == out.size();
}

}  // namespace weft
