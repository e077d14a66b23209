// Plans over the nodes of a cluster file, and cluster files that hold a plan.
//
//     const ClusterConfig cluster = read_cluster_config("cluster.toml");
//     const PlanOptions options = cluster_plan_options(cluster, config.max_context);
//     const Plan plan = make_plan(model, options);
//     write_file_atomic("manual.toml", with_plan(cluster, plan, "manual.toml").to_toml());
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/remote/cluster_config.h"

namespace weft {

// What the file says of stages, split, room and nodes. Room for kv_tokens, or for `max_context` where that is less. Where the
// file states the memory of some stages only, the others count as the largest of those, which a warning of the plan says.
[[nodiscard]] PlanOptions cluster_plan_options(const ClusterConfig& cluster, int64_t max_context);
// The same over the bytes of memory that the nodes were found to have, by stage.
[[nodiscard]] PlanOptions cluster_plan_options(const ClusterConfig& cluster, int64_t max_context,
                                               const std::vector<int64_t>& memory);

// `cluster` as file `out`, with the plan's layers as its manual split.
[[nodiscard]] ClusterConfig with_plan(ClusterConfig cluster, const Plan& plan, const std::filesystem::path& out);

// A cluster to put a plan into that was made without one: a coordinator and stages at ports of 127.0.0.1 from 19000, with the
// room that `options` state.
[[nodiscard]] ClusterConfig loopback_cluster(const Plan& plan, const PlanOptions& options, const std::filesystem::path& model);

}  // namespace weft
