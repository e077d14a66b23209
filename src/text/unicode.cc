#include "text/unicode.h"

#include <memory>

namespace weft {

const uint8_t* char_classes() {
  static const std::unique_ptr<const uint8_t[]> table = [] {
    constexpr uint32_t kCodePoints = 0x110000;
    auto bytes = std::make_unique<uint8_t[]>(kCodePoints);
    for (size_t run = 0; run < kUnicodeRunCount; ++run) {
      const uint32_t end = run + 1 < kUnicodeRunCount ? kUnicodeRuns[run + 1] >> 8 : kCodePoints;
      for (uint32_t code = kUnicodeRuns[run] >> 8; code < end; ++code) bytes[code] = static_cast<uint8_t>(kUnicodeRuns[run]);
    }
    return std::unique_ptr<const uint8_t[]>(std::move(bytes));
  }();
  return table.get();
}

}  // namespace weft
