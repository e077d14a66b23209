#include "app/plan_cluster.h"

#include "base/file.h"
#include "pipeline/remote/cluster_plan.h"

namespace weft {

ClusterConfig read_plan_cluster(const std::string& file, bool insecure) {
  ClusterSecurity given;
  given.allow_insecure = insecure;
  return read_cluster_config(file, given);
}

PlanOptions plan_cluster_options(const ClusterConfig& cluster, int64_t max_context) {
  return cluster_plan_options(cluster, max_context);
}

void write_plan_cluster(const std::string& out, const std::optional<ClusterConfig>& cluster, const Plan& plan,
                        const PlanOptions& options, const std::filesystem::path& model) {
  write_file_atomic(out, with_plan(cluster ? *cluster : loopback_cluster(plan, options, model), plan, out).to_toml());
}

}  // namespace weft
