// The cluster file of `weft plan`. A build without gRPC has a stand-in that refuses.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/remote/cluster_config.h"

namespace weft {

// What a command line says of the split of a cluster file; it wins over the file.
struct SplitChoice {
  std::optional<int64_t> stages = {};      // --pp-size
  std::optional<std::string> layers = {};  // --pp-layers
  std::string balance = {};                // --pp-balance; empty: as the file says
};
// Throws bad_input (P07) when it has another number of stages than the file.
void apply_split(const SplitChoice& choice, ClusterConfig& cluster);

[[nodiscard]] ClusterConfig read_plan_cluster(const std::string& file, bool insecure);
[[nodiscard]] PlanOptions plan_cluster_options(const ClusterConfig& cluster, int64_t max_context);
// `cluster`, or one at loopback addresses, with the plan's layers.
void write_plan_cluster(const std::string& out, const std::optional<ClusterConfig>& cluster, const Plan& plan,
                        const PlanOptions& options, const std::filesystem::path& model);

}  // namespace weft
