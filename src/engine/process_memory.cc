#include "engine/process_memory.h"

#include <sys/resource.h>

namespace weft {

ByteCount peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ByteCount(static_cast<int64_t>(usage.ru_maxrss) * 1024);  // Linux counts KiB
}

}  // namespace weft
