// Any bytes as a cluster file: read, or refused with a weft::Error. What is read is written and read back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "pipeline/remote/cluster_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ClusterConfig config;
  try {
    config = parse_cluster_config(text, "folder/cluster.toml");
  } catch (const Error&) {
    return 0;
  }
  const std::string written = config.to_toml();
  if (parse_cluster_config(written, "folder/cluster.toml") != config) std::abort();
  if (static_cast<int64_t>(config.nodes.size()) != config.stages + 1) std::abort();
  if (config.nodes.front().id != config.coordinator().id) std::abort();
  for (int64_t s = 0; s < config.stages; ++s)
    if (config.node(config.stage(s).id) != config.stage(s)) std::abort();
  return 0;
}
