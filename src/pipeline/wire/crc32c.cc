#include "pipeline/wire/crc32c.h"

#include <algorithm>
#include <cstring>
#include <isa-l/crc.h>

namespace weft {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // the library takes an int
constexpr size_t kCopyBlock = size_t{8} << 10;   // is in the first cache when it is read again

// Without the inversion before and after, which RFC 3720 asks for.
uint32_t raw(std::span<const std::byte> bytes, uint32_t state) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kMostAtOnce);
    // It takes a pointer to what is not const, and only reads.
    auto* const data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return state;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) { return ~raw(bytes, ~before); }

uint32_t crc32c_copy(std::span<const std::byte> bytes, std::byte* out, uint32_t before) {
  uint32_t state = ~before;
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), kCopyBlock));
    state = raw(block, state);
    std::memcpy(out, block.data(), block.size());
    out += block.size();
    bytes = bytes.subspan(block.size());
  }
  return ~state;
}

}  // namespace weft
