#include "pipeline/remote/cluster_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace weft {
namespace {

constexpr int64_t kFirstPort = 19000;  // of the coordinator; stages follow
constexpr int64_t kLastPort = 65535;

}  // namespace

PlanOptions cluster_plan_options(const ClusterConfig& cluster, int64_t max_context) {
  PlanOptions options;
  options.stages = cluster.stages;
  options.layers = cluster.layers.value_or("");
  options.reserve_fraction = cluster.reserve_fraction;
  options.sequences = cluster.kv_sequences;
  options.tokens = TokenCount(std::min(cluster.kv_tokens, max_context));
  options.balance = parse_balance(cluster.balance);
  options.link = PlanLink{};
  int64_t largest = 0;
  std::vector<std::string> silent;  // stages whose memory is not stated
  for (int64_t s = 0; s < cluster.stages; ++s) {
    const ClusterNode& node = cluster.stage(s);
    options.nodes.push_back(fmt::format("{} ({})", node.id, node.address));
    options.node_bandwidth.push_back(node.memory_bandwidth);
    options.node_memory.push_back(node.memory_bytes);
    largest = std::max(largest, node.memory_bytes);
    if (node.memory_bytes == 0) silent.push_back(node.id);
  }
  if (largest == 0) {
    options.node_memory.clear();
  } else if (!silent.empty()) {
    std::ranges::replace(options.node_memory, int64_t{0}, largest);
    options.warnings.push_back(
        fmt::format("{} states no memory_bytes for {}: counted as {}, like the largest node that it does",
                    cluster.file.string(), fmt::join(silent, ", "), human_bytes(largest)));
  }
  return options;
}

PlanOptions cluster_plan_options(const ClusterConfig& cluster, int64_t max_context, const std::vector<int64_t>& memory) {
  PlanOptions options = cluster_plan_options(cluster, max_context);
  options.node_memory = memory;
  options.warnings.clear();
  return options;
}

ClusterConfig with_plan(ClusterConfig cluster, const Plan& plan, const std::filesystem::path& out) {
  if (std::ssize(plan.stages) != cluster.stages)
    fail(ErrorKind::bad_input, out.string(), "P07: wanted a plan of {} stages, found {}", cluster.stages, plan.stages.size());
  cluster.file = out;
  std::string layers;
  for (const PlanStage& stage : plan.stages)
    layers += fmt::format("{}{}-{}", layers.empty() ? "" : ",", stage.layers.begin, stage.layers.end.value - 1);
  cluster.layers = layers;
  return cluster;
}

ClusterConfig loopback_cluster(const Plan& plan, const PlanOptions& options, const std::filesystem::path& model) {
  const int64_t stages = std::ssize(plan.stages);
  if (stages > kLastPort - kFirstPort)
    fail(ErrorKind::bad_input, "cluster file", "wanted at most {} stages on one host, found {}", kLastPort - kFirstPort,
         stages);
  ClusterConfig cluster;
  cluster.stages = stages;
  cluster.model = model;
  cluster.balance = to_string(options.balance);
  cluster.kv_tokens = options.tokens.value;
  cluster.kv_sequences = options.sequences;
  cluster.reserve_fraction = options.reserve_fraction;
  cluster.nodes.push_back({"coordinator", fmt::format("127.0.0.1:{}", kFirstPort), NodeRole::coordinator});
  const std::vector<int64_t>& memory = options.node_memory;
  for (int64_t s = 0; s < stages; ++s) {
    ClusterNode node{fmt::format("stage-{}", s), fmt::format("127.0.0.1:{}", kFirstPort + 1 + s), NodeRole::stage, s};
    if (!memory.empty()) node.memory_bytes = memory[memory.size() == 1 ? 0 : static_cast<size_t>(s)];
    cluster.nodes.push_back(std::move(node));
  }
  return cluster;
}

}  // namespace weft
