// Any bytes as a shard index: parsed, or refused with a weft::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "formats/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  try {
    const ShardIndex index = ShardIndex::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    if (index.size() == 0) std::abort();
    for (uint32_t i = 0; i < index.size(); ++i) {
      if (index.find(index.name(i)) != i || index.file_of(i) >= index.files().size()) std::abort();
    }
    for (const std::string& file : index.files()) {
      if (refused_file_name(file)) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
