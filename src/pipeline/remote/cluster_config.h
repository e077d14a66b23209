// The TOML file that names the nodes of a cluster (distributed.md 2.3).
//
//     const ClusterConfig cluster = read_cluster_config("cluster.toml");  // throws bad_input naming file, key and value
//     cluster.stage(1).address;                                          // "10.0.0.12:19001"
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class NodeRole : uint8_t { coordinator, stage };  // "hybrid"; "pipeline_stage" or "pipeline"

struct ClusterNode {
  std::string id;
  std::string address;  // "host:port", "[v6]:port", "unix:/path"
  NodeRole role = NodeRole::stage;
  std::optional<int64_t> stage = {};
  int64_t memory_bytes = 0;                          // 0: ask the node
  int64_t compute_units = 0;                         // 0: unknown
  double memory_bandwidth = 0.0;                     // bytes/s; 0: unknown
  std::filesystem::path model_dir = {};              // on that node; empty: the one of the cluster or of the command line
  std::optional<std::vector<int64_t>> devices = {};  // accelerators; absent: all

  friend bool operator==(const ClusterNode&, const ClusterNode&) = default;
};

// Paths are absolute, or relative to the working folder: the file's folder is put before what it names.
struct ClusterSecurity {
  std::filesystem::path cert = {};
  std::filesystem::path key = {};
  std::filesystem::path ca = {};
  std::filesystem::path token_file = {};
  bool allow_insecure = false;

  friend bool operator==(const ClusterSecurity&, const ClusterSecurity&) = default;
};

// Limits of distributed.md 2.2 and 5.10, in seconds.
struct ClusterTimeouts {
  double stage = 30.0;
  double connect = 5.0;
  double load = 1800.0;
  double heartbeat_interval = 1.0;
  int64_t heartbeat_misses = 3;

  friend bool operator==(const ClusterTimeouts&, const ClusterTimeouts&) = default;
};

struct ClusterConfig {
  std::filesystem::path file;
  std::string name = "cluster";
  int64_t stages = 1;                     // pipeline_parallel_size
  std::string transport_backend = "tcp";  // tcp, auto or grpc, which are one and the same today
  std::filesystem::path model;
  std::optional<std::string> layers;  // [partition] mode = "manual": as --pp-layers
  std::string balance = "memory";     // memory, compute or latency
  int64_t kv_tokens = 32768;
  int64_t kv_sequences = 4;
  double reserve_fraction = 0.08;
  ClusterTimeouts timeouts;
  ClusterSecurity security;
  std::vector<ClusterNode> nodes;  // the coordinator, then the stages by index

  friend bool operator==(const ClusterConfig&, const ClusterConfig&) = default;

  [[nodiscard]] const ClusterNode& coordinator() const;
  [[nodiscard]] const ClusterNode& stage(int64_t index) const;
  // Throws bad_input naming the file, the id and the known ones.
  [[nodiscard]] const ClusterNode& node(std::string_view id) const;
  // Fixed order of keys, coordinator first, then stages; parses back, as `file`, to an equal configuration. Paths of [security]
  // are written relative to the folder of `file` where they can be.
  [[nodiscard]] std::string to_toml() const;
};

// The 13 errors of distributed.md 2.3, each naming file, key and value: plaintext on an address that is not loopback is of kind
// `security`, roles and transports that are known and not built are `unsupported`, all others are bad_input. An unknown key is
// answered with the closest known one. `given` is what the command line says: its paths take the place of the file's, and its
// allow_insecure counts too.
[[nodiscard]] ClusterConfig read_cluster_config(const std::filesystem::path& file, const ClusterSecurity& given = {});
[[nodiscard]] ClusterConfig parse_cluster_config(std::string_view text, const std::filesystem::path& file,
                                                 const ClusterSecurity& given = {});

}  // namespace weft
