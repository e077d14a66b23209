#include "engine/process_memory.h"

#include <utility>

#include <sys/resource.h>

namespace weft {

ByteCount peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ByteCount(static_cast<int64_t>(usage.ru_maxrss) * 1024);  // Linux counts KiB
}

Json memory_json(const MemoryUse& use) {
  Json made = {{"trunk_bytes", use.trunk.value},
               {"expert_bytes", use.experts.value},
               {"state_bytes", use.state.value},
               {"workspace_bytes", use.workspace.value},
               {"peak_bytes", peak_memory().value}};
  if (use.gpu_planned.weights == ByteCount(0)) return made;
  for (const auto& [name, memory] : {std::pair{"planned", use.gpu_planned}, std::pair{"used", use.gpu_used}}) {
    made["gpu"][name] = {{"weight_bytes", memory.weights.value},
                         {"state_bytes", memory.state.value},
                         {"workspace_bytes", memory.workspace.value}};
  }
  return made;
}

std::string gpu_memory_text(const MemoryUse& use) {
  const GpuMemory& planned = use.gpu_planned;
  const GpuMemory& used = use.gpu_used;
  if (planned.weights == ByteCount(0)) return "";
  const auto part = [](ByteCount a, ByteCount b) { return human_bytes(a.value) + " of " + human_bytes(b.value); };
  return "GPU memory used of planned: weights " + part(used.weights, planned.weights) + ", state " +
         part(used.state, planned.state) + ", workspace " + part(used.workspace, planned.workspace);
}

}  // namespace weft
