// config.json is bytes from outside: parsing ends with a configuration or a weft::Error, and a configuration that was accepted
// has a parameter table and a state.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const weft::Json json = weft::parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    const auto config = weft::parse_model_config(json, "config.json");
    if (config->layer_count > 256) return 0;
    (void)config->params();
    (void)config->state_layout(config->all_layers());
    (void)config->summary();
  } catch (const weft::Error&) {
    return 0;
  }
  return 0;
}
