// Whether a cluster can work: `weft doctor` (docs/distributed.md).
//
//     DiagnosisOptions options;
//     options.observer.cluster = read_cluster_config("cluster.toml");
//     const Diagnosis diagnosis = diagnose(options);   // throws nothing that a node is the cause of
//     diagnosis.worst();                               // nothing when all is well
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/fingerprint.h"
#include "pipeline/plan.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/observe.h"

namespace weft {

struct DiagnosisOptions {
  ObserverOptions observer;
  std::string config_sha256;  // of the model's config.json here; empty: the nodes are compared with each other
  // The split that a run would take, over nodes of so many bytes of memory: each node says whether its shards are there, and
  // those that two nodes have are compared. Empty: shards are not looked at.
  std::function<Plan(const std::vector<int64_t>& memory)> plan;
  int64_t bytes = int64_t{16} << 20;  // most that a transfer of a measurement has
  int repeats = 5;
};

struct Finding {
  bool warning = false;  // else an error
  std::string place;     // node, or "stage-0 -> stage-1"
  Failure failure;
};

struct NodeDiagnosis {
  int64_t stage = 0;
  std::string node;
  std::string address;
  std::vector<std::string> resolved;  // numeric addresses
  std::string connection;             // "mutual TLS", "Unix socket", ...
  bool reached = false;               // it answered a handshake; what follows is what it said
  std::string build;
  std::string features;
  std::string device;
  std::string operators;  // "cpu AVX2", "reference", "cuda"
  std::string family;
  std::string config_sha256;
  std::string layers;               // "0-3"; empty: nothing is loaded
  std::vector<ShardDigest> shards;  // that its stage would load; empty: they were not looked at, or a finding says why
  int64_t memory = 0;               // bytes that its stage may use
  double clock_skew = 0.0;          // seconds that its clock is ahead
};

struct LinkDiagnosis {
  std::string from;
  std::string to;
  std::optional<LinkMeasure> measure;  // nothing: a finding says why
};

struct Diagnosis {
  std::string cluster;
  std::string build;                 // of this program
  std::string features;              // likewise
  std::string certificate;           // of this end: "valid until 2027-01-31"; empty without TLS
  std::vector<NodeDiagnosis> nodes;  // by stage
  std::vector<LinkDiagnosis> links;  // from the coordinator to each node, then from each stage to the next
  std::vector<Finding> findings;

  [[nodiscard]] std::optional<ErrorKind> worst() const;  // worst_kind() of the errors
  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// Handshakes run side by side, measurements one after the other, so that none disturbs another.
[[nodiscard]] Diagnosis diagnose(const DiagnosisOptions& options);

}  // namespace weft
