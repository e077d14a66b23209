#include "engine/process_memory.h"

#include <sys/resource.h>

namespace weft {

ByteCount peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ByteCount(static_cast<int64_t>(usage.ru_maxrss) * 1024);  // Linux counts KiB
}

Json memory_json(const MemoryUse& use) {
  return {{"trunk_bytes", use.trunk.value},
          {"expert_bytes", use.experts.value},
          {"state_bytes", use.state.value},
          {"workspace_bytes", use.workspace.value},
          {"peak_bytes", peak_memory().value}};
}

}  // namespace weft
