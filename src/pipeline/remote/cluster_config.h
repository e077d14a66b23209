// The TOML file that names the nodes of a cluster (distributed.md 2.3).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "pipeline/plan.h"

namespace weft {

enum class NodeRole : uint8_t { coordinator, stage };  // "hybrid"; "pipeline_stage" or "pipeline"

struct ClusterNode {
  std::string id;
  std::string address;  // "host:port", "[v6]:port", "unix:/path"
  NodeRole role = NodeRole::stage;
  std::optional<int64_t> stage;
  int64_t memory_bytes = 0;       // 0: ask the node
  double memory_bandwidth = 0.0;  // bytes/s; 0: unknown
  std::filesystem::path model_dir;  // empty: the one of the cluster or of the command line
};

struct ClusterSecurity {
  std::filesystem::path cert;  // absolute, or relative to the working folder: the file's folder is put before what it names
  std::filesystem::path key;
  std::filesystem::path ca;
  std::filesystem::path token_file;
  bool allow_insecure = false;
};

// Limits of distributed.md 2.2 and 5.10, in seconds.
struct ClusterTimeouts {
  double stage = 30.0;
  double connect = 5.0;
  double load = 1800.0;
  double heartbeat_interval = 1.0;
  int64_t heartbeat_misses = 3;
};

struct ClusterConfig {
  std::filesystem::path file;
  std::string name = "cluster";
  int64_t stages = 1;  // pipeline_parallel_size
  std::filesystem::path model;
  std::optional<std::string> layers;  // [partition] mode = "manual": as --pp-layers
  std::string balance = "memory";
  int64_t kv_tokens = 32768;
  int64_t kv_sequences = 4;
  double reserve_fraction = 0.08;
  ClusterTimeouts timeouts;
  ClusterSecurity security;
  std::vector<ClusterNode> nodes;

  [[nodiscard]] const ClusterNode& coordinator() const;
  [[nodiscard]] const ClusterNode& stage(int64_t index) const;
  // Throws bad_input naming the file, the id and the known ones.
  [[nodiscard]] const ClusterNode& node(std::string_view id) const;
  // Fixed order of keys, coordinator first, then stages; parses back to an equal configuration.
  [[nodiscard]] std::string to_toml() const;
};

// Throws bad_input naming file, key and value for each of the 13 errors of distributed.md 2.3; an unknown key is answered with
// the closest known one.
[[nodiscard]] ClusterConfig read_cluster_config(const std::filesystem::path& file);
[[nodiscard]] ClusterConfig parse_cluster_config(std::string_view text, const std::filesystem::path& file);

}  // namespace weft
