// config.json is bytes from outside: parsing ends with a configuration or a weft::Error, and a configuration that was accepted
// has a parameter table.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/kimi_config.h"
#include "model/param_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const weft::Json json = weft::parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    const weft::KimiConfig config = weft::parse_kimi_config(json, "config.json");
    if (config.layer_count <= 256) (void)weft::kimi_param_table(config);
  } catch (const weft::Error&) {
    return 0;
  }
  return 0;
}
