// What running stages say of themselves, asked from outside: `weft status` (docs/distributed.md).
//
//     ObserverOptions options;
//     options.cluster = read_cluster_config("cluster.toml");
//     for (const StageObservation& seen : observe_stages(options)) ...   // one a stage, reachable or not
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/guard.h"
#include "base/json.h"
#include "pipeline/remote/cluster_config.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/wire/link.h"

namespace weft {

struct ObserverOptions {
  ClusterConfig cluster;
  std::string node;  // whom this end's certificate names; empty: the coordinator
  TransportSecurity security;
  LinkOptions link;
  std::string build;  // version and commit, for messages
};

struct StageObservation {
  int64_t stage = 0;
  std::string node;
  std::string address;
  Json status;                     // status_json(); null when it could not be had
  std::optional<Failure> failure;  // why not: unreachable, security, handshake, stage_lost, ...
};

// Asks all stages side by side; takes no longer than connecting, a handshake and an answer may take (25 s by default).
[[nodiscard]] std::vector<StageObservation> observe_stages(const ObserverOptions& options);

// {"cluster", "stages": [{"stage", "node", "address", "reachable", ...status_json() or "failure": {"kind", "message"}}]}
[[nodiscard]] Json observations_json(const std::string& cluster, const std::vector<StageObservation>& observations);
[[nodiscard]] std::string observations_text(const std::vector<StageObservation>& observations);  // a table, a row a stage

// Of several failures, the one that a report ends with: security before handshake, before all others, before faults of
// checkpoints, before a plan that does not fit.
[[nodiscard]] std::optional<ErrorKind> worst_kind(const std::vector<ErrorKind>& kinds);

// "gRPC 1.51.1, without CUDA"
[[nodiscard]] std::string built_with();

}  // namespace weft
