// Any bytes as the beginning of a safetensors file: parsed, or refused with a weft::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  // Once as the whole file, once as a file with more data behind these bytes.
  for (const auto file_size : {static_cast<int64_t>(size), static_cast<int64_t>(size) + 4096}) {
    try {
      const SafetensorsHeader header = parse_safetensors_header(bytes, file_size, "fuzz");
      // What is accepted covers the data section exactly, and every tensor is found under its name.
      int64_t covered = header.data_begin();
      for (const TensorEntry& entry : header.entries()) {
        if (entry.begin != covered || entry.end < entry.begin || header.find(entry.name) != &entry) std::abort();
        if (entry.bytes() != entry.shape.elements() * size_of(entry.dtype)) std::abort();
        covered = entry.end;
      }
      if (covered != file_size) std::abort();
    } catch (const Error&) {
    }
  }
  return 0;
}
