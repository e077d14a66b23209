// Text that parse_json accepts is written and read again to the same value; what it refuses, it refuses with an Error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const weft::Json value = weft::parse_json(text, "fuzz");
    const std::string written = value.dump(-1, ' ', false, weft::Json::error_handler_t::replace);
    if (weft::parse_json(written, "fuzz") != value) std::abort();
  } catch (const weft::Error&) {
    return 0;
  }
  return 0;
}
