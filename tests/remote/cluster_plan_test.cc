// Plans over cluster files, and the files of examples/distributed (rulings R2 and R9, distributed.md 2.3, 2.4, D3).
#include "pipeline/remote/cluster_plan.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "model/model_config.h"
#include "pipeline/remote/grpc_transport.h"

#include "remote/live_cluster.h"
#include "support/models.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kExamples = std::filesystem::path(WEFT_SOURCE_DIR) / "examples/distributed";

PlanModel kimi() {
  return plan_model(parse_model_config(read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"), "config.json"));
}

PlanModel small() { return plan_model(Checkpoint(testing_support::fixture("tiny-k3-8l"))); }

ClusterConfig two_stages(const std::string& partition, const std::string& first = "", const std::string& second = "") {
  return parse_cluster_config(R"([cluster]
pipeline_parallel_size = 2
[partition]
)" + partition + R"(
[[nodes]]
id = "front"
address = "127.0.0.1:19000"
role = "hybrid"
[[nodes]]
id = "a"
address = "127.0.0.1:19001"
role = "pipeline"
stage = 0
)" + first + R"(
[[nodes]]
id = "b"
address = "127.0.0.1:19002"
role = "pipeline"
stage = 1
)" + second,
                              "folder/cluster.toml");
}

TEST(ClusterPlan, OptionsSayWhatTheFileSays) {
  const ClusterConfig cluster = two_stages(
      "mode = \"manual\"\nlayers = \"3+5\"\nbalance = \"compute\"\nkv_tokens = 1000\nkv_sequences = 7\nreserve_fraction = 0.25",
      "resources = { memory_bytes = 1000000000, memory_bandwidth = 4e11 }", "resources = { memory_bytes = 2000000000 }");
  const PlanOptions options = cluster_plan_options(cluster, 100000);
  EXPECT_EQ(options.stages, 2);
  EXPECT_EQ(options.layers, "3+5");
  EXPECT_EQ(options.balance, PlanBalance::compute);
  EXPECT_EQ(options.tokens, TokenCount(1000));
  EXPECT_EQ(options.sequences, 7);
  EXPECT_EQ(options.reserve_fraction, 0.25);
  EXPECT_THAT(options.node_memory, ElementsAre(1'000'000'000, 2'000'000'000));
  EXPECT_THAT(options.node_bandwidth, ElementsAre(4e11, 0.0));
  EXPECT_THAT(options.nodes, ElementsAre("a (127.0.0.1:19001)", "b (127.0.0.1:19002)"));
  EXPECT_EQ(options.link, PlanLink{});
  EXPECT_THAT(options.warnings, ::testing::IsEmpty());
  EXPECT_EQ(cluster_plan_options(cluster, 10).tokens, TokenCount(10)) << "no more than the model's context";
  const Plan plan = make_plan(small(), options);
  EXPECT_EQ(plan.stages[0].node, "a (127.0.0.1:19001)");
  EXPECT_EQ(plan.stages[1].budget, 1'500'000'000);
}

TEST(ClusterPlan, MemoryThatIsNotStated) {
  EXPECT_THAT(cluster_plan_options(two_stages(""), 100).node_memory, ::testing::IsEmpty());
  const PlanOptions half = cluster_plan_options(two_stages("", "", "resources = { memory_bytes = 68719476736 }"), 100);
  EXPECT_THAT(half.node_memory, ElementsAre(64LL << 30, 64LL << 30));
  EXPECT_THAT(half.warnings, ElementsAre(AllOf(HasSubstr("folder/cluster.toml"), HasSubstr("for a:"), HasSubstr("64.00 GiB"))));
  EXPECT_THAT(make_plan(small(), half).warnings, ::testing::Contains(HasSubstr("for a:")));
}

// D3: written, read and planned again, the plan is the same, and so are the bytes.
TEST(ClusterPlan, APlanIsWrittenAndReadBack) {
  const ClusterConfig cluster = two_stages("balance = \"memory\"\nkv_tokens = 512", "resources = { memory_bytes = 900000000 }",
                                           "resources = { memory_bytes = 500000000 }");
  const Plan plan = make_plan(small(), cluster_plan_options(cluster, 100000));
  const std::string text = with_plan(cluster, plan, "folder/manual.toml").to_toml();
  EXPECT_EQ(with_plan(cluster, make_plan(small(), cluster_plan_options(cluster, 100000)), "folder/manual.toml").to_toml(),
            text);
  const ClusterConfig manual = parse_cluster_config(text, "folder/manual.toml");
  ASSERT_TRUE(manual.layers);
  const Plan again = make_plan(small(), cluster_plan_options(manual, 100000));
  EXPECT_EQ(again.to_json(), plan.to_json());
  EXPECT_EQ(with_plan(manual, again, "folder/manual.toml").to_toml(), text);
  ClusterConfig expected = cluster;
  expected.file = "folder/manual.toml";
  expected.layers = manual.layers;
  EXPECT_EQ(manual, expected) << "nothing else changes";
  PlanOptions three;
  three.stages = 3;
  EXPECT_THROW((void)with_plan(cluster, make_plan(small(), three), "x.toml"), Error);
}

TEST(ClusterPlan, WithoutAFileOnLoopback) {
  PlanOptions options;
  options.stages = 3;
  options.node_memory = {1'000'000'000};
  options.tokens = TokenCount(256);
  options.balance = PlanBalance::latency;
  options.reserve_fraction = 0.125;
  const Plan plan = make_plan(small(), options);
  const ClusterConfig made = with_plan(loopback_cluster(plan, options, "models/tiny"), plan, "plan.toml");
  const ClusterConfig read = parse_cluster_config(made.to_toml(), "plan.toml");
  EXPECT_EQ(read, made);
  EXPECT_EQ(read.model, "models/tiny");
  EXPECT_EQ(read.coordinator().address, "127.0.0.1:19000");
  EXPECT_EQ(read.stage(2).address, "127.0.0.1:19003");
  EXPECT_EQ(read.stage(2).memory_bytes, 1'000'000'000);
  const Plan again = make_plan(small(), cluster_plan_options(read, 100000));
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(again.stages[s].layers, plan.stages[s].layers);
  EXPECT_EQ(again.stages[0].budget, plan.stages[0].budget);
}

TEST(Examples, TwoNodes) {
  const ClusterConfig cluster = read_cluster_config(kExamples / "two-node.toml");
  EXPECT_EQ(cluster.stages, 2);
  EXPECT_EQ(cluster.balance, "latency");
  EXPECT_EQ(cluster.kv_tokens, 65536);
  EXPECT_EQ(cluster.security.cert, kExamples / "node.pem");
  EXPECT_EQ(cluster.coordinator().address, "10.0.0.11:19000");
}

// Ruling R2.
TEST(Examples, ThreeNodesFitWithTheReserveThatTheFileSays) {
  const ClusterConfig cluster = read_cluster_config(kExamples / "three-node.toml");
  EXPECT_FALSE(cluster.layers) << "the file is for other models too";
  EXPECT_EQ(cluster.reserve_fraction, 0.03);
  PlanOptions options = cluster_plan_options(cluster, 1 << 20);
  const Plan plan = make_plan(kimi(), options);
  for (const PlanStage& stage : plan.stages) EXPECT_EQ(stage.budget, 533'263'139'471);
  EXPECT_EQ(with_plan(cluster, plan, "x.toml").layers, "0-30,31-61,62-92");
  options.reserve_fraction = 0.08;
  try {
    (void)make_plan(kimi(), options);
    ADD_FAILURE() << "the default reserve is too much for three nodes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plan_impossible);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("P09"), HasSubstr("total shortfall"), HasSubstr("4 nodes of 512.00 GiB would do")));
  }
}

TEST(Examples, FourNodesFitWithTheDefaultReserve) {
  const ClusterConfig cluster = read_cluster_config(kExamples / "four-node.toml");
  EXPECT_EQ(cluster.reserve_fraction, 0.08);
  const Plan plan = make_plan(kimi(), cluster_plan_options(cluster, 1 << 20));
  EXPECT_EQ(plan.stages.size(), 4U);
  EXPECT_LT(plan.imbalance, 1.1);
}

TEST(Examples, AllAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kExamples)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const ClusterConfig cluster = read_cluster_config(entry.path());
    EXPECT_EQ(parse_cluster_config(cluster.to_toml(), entry.path()), cluster) << entry.path();
    EXPECT_THAT(read_text_file(kExamples / "README.md"), HasSubstr("](" + entry.path().filename().string() + ")"));
  }
  EXPECT_EQ(files, 3);
}

TEST(RemoteLoader, ARunSplitsAsThePlanOfItsFileDoes) {
  const remote_test::LiveCluster cluster(2);
  const Checkpoint headers(testing_support::k3_mini());
  std::set<int64_t> cuts;
  for (const char* balance : {"memory", "compute", "latency"}) {
    RemoteModelOptions options = cluster.model_options();
    options.cluster.balance = balance;
    const Plan planned = make_plan(plan_model(headers), cluster_plan_options(options.cluster, headers.config().max_context));
    const LoadedExecutor loaded = load_remote_executor(options);
    ASSERT_EQ(loaded.stages.size(), planned.stages.size());
    for (size_t s = 0; s < loaded.stages.size(); ++s)
      EXPECT_EQ(loaded.stages[s].begin, planned.stages[s].layers.begin) << balance;
    cuts.insert(planned.stages[1].layers.begin.value);
  }
  EXPECT_GT(cuts.size(), 1U) << "the rules give one split here: nothing was compared";
}

}  // namespace
}  // namespace weft
