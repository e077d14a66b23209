#include "engine/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

namespace weft {

ByteCount peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ByteCount(static_cast<int64_t>(usage.ru_maxrss) * 1024);  // Linux counts KiB
}

ByteCount physical_memory() {
  return ByteCount(static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace weft
