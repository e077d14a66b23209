// What a plan balances and predicts: distributed.md 3.4 and 3.6, K3 spec 5, K15.
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/plan.h"

#include "support/models.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::fixture;

PlanModel published() {
  return plan_model(parse_model_config(read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"), "config.json"));
}

// Layers of equal size and width, embedding and head of none.
PlanModel even(int64_t layers, int64_t read) {
  PlanModel model;
  model.hidden_size = 1000;
  for (int64_t l = 0; l < layers; ++l) {
    PlanModel::Layer layer;
    layer.kind = "GDN MoE";
    layer.weights = layer.read = read;
    layer.width = 1000;
    model.layers.push_back(layer);
  }
  return model;
}

std::vector<int64_t> sizes(const Plan& plan) {
  std::vector<int64_t> made;
  for (const PlanStage& stage : plan.stages) made.push_back(stage.layers.size());
  return made;
}

TEST(PlanBalance, ComputeFollowsTheBandwidth) {
  PlanOptions options;
  options.stages = 3;
  options.node_bandwidth = {400e9, 100e9, 100e9};
  const PlanModel model = even(12, 1'000'000'000);
  EXPECT_THAT(sizes(make_plan(model, options)), ElementsAre(4, 4, 4)) << "memory does not look at it";
  options.balance = PlanBalance::compute;
  const Plan plan = make_plan(model, options);
  EXPECT_THAT(sizes(plan), ElementsAre(8, 2, 2));
  EXPECT_NEAR(*plan.stages[0].seconds_per_token, 8e9 / 400e9, 1e-12);
  EXPECT_NEAR(*plan.stages[1].seconds_per_token, 2e9 / 100e9, 1e-12);
  EXPECT_EQ(plan.balance, PlanBalance::compute);
  // All are as fast as one another: the split of equal bytes, and the plan says what it took for granted.
  options.node_bandwidth.clear();
  const Plan unknown = make_plan(model, options);
  EXPECT_THAT(sizes(unknown), ElementsAre(4, 4, 4));
  EXPECT_THAT(unknown.warnings, ElementsAre(HasSubstr("the bandwidth of the nodes is not known")));
  options.node_bandwidth = {400e9, 0.0, 0.0};
  EXPECT_THAT(make_plan(model, options).warnings, ::testing::Contains(HasSubstr("the bandwidth of some nodes is not known")));
  options.bandwidth = 100e9;
  EXPECT_THAT(sizes(make_plan(model, options)), ElementsAre(8, 2, 2));
}

// A faster node has no more than it can hold.
TEST(PlanBalance, ComputeStaysWithinTheMemory) {
  PlanOptions options;
  options.stages = 2;
  options.balance = PlanBalance::compute;
  options.node_bandwidth = {400e9, 100e9};
  options.sequences = 0;
  options.prefill_chunk = 1;
  options.reserve_fraction = 0.0;
  options.node_memory = {6'500'000'000, 64'000'000'000};
  EXPECT_THAT(sizes(make_plan(even(10, 1'000'000'000), options)), ElementsAre(6, 4));
  options.node_memory = {2'000'000'000, 2'000'000'000};
  EXPECT_THROW((void)make_plan(even(10, 1'000'000'000), options), Error);
}

// With equal nodes the times are the same for every split: what crosses decides, and that grows with K3's planes.
TEST(PlanBalance, LatencyKeepsBoundariesNarrow) {
  PlanOptions options;
  options.stages = 3;
  options.balance = PlanBalance::latency;
  options.bandwidth = 400e9;
  options.link = PlanLink{};
  const PlanModel model = published();
  const Plan plan = make_plan(model, options);
  EXPECT_THAT(sizes(plan), ElementsAre(1, 1, 91));
  EXPECT_EQ(plan.stages[0].boundary_planes, 2);
  // Nodes that hold no more force wider ones, and no wider than need be.
  options.node_memory = {parse_memory("700GiB")};
  const Plan held = make_plan(model, options);
  options.balance = PlanBalance::memory;
  const Plan even_bytes = make_plan(model, options);
  const auto hops = [](const Plan& of) { return *of.stages[0].hop_seconds + *of.stages[1].hop_seconds; };
  EXPECT_LT(hops(held), hops(even_bytes));
  EXPECT_GT(hops(held), hops(plan));
  EXPECT_GT(*held.tokens_per_second, *even_bytes.tokens_per_second);
  for (const PlanStage& stage : held.stages) EXPECT_EQ(stage.shortfall(), 0);
  // A slow link makes a slower node the better place for more layers.
  options.balance = PlanBalance::latency;
  options.node_memory.clear();
  options.node_bandwidth = {100e9, 100e9, 400e9};
  EXPECT_THAT(sizes(make_plan(model, options)), ElementsAre(1, 1, 91));
  options.node_bandwidth = {400e9, 100e9, 100e9};
  options.link->bandwidth = 100e9;
  EXPECT_THAT(sizes(make_plan(model, options)), ElementsAre(91, 1, 1));
  options.link->bandwidth = 1e5;  // as far as two planes cross
  EXPECT_THAT(sizes(make_plan(model, options)), ElementsAre(11, 1, 81));
}

// K3 spec 5: bytes of a token before a layer in bf16; and the hop of 100 us and 1 GB/s.
TEST(PlanBalance, BoundariesOfTheSpecification) {
  const std::map<int64_t, int64_t> bytes = {{1, 28'672},  {12, 28'672}, {13, 43'008},  {24, 43'008},  {31, 57'344},
                                            {47, 71'680}, {48, 71'680}, {62, 100'352}, {84, 114'688}, {92, 129'024}};
  PlanOptions options;
  options.layers = "0,1-11,12,13-23,24-30,31-46,47,48-61,62-83,84-91,92";
  options.link = PlanLink{};
  const Plan plan = make_plan(published(), options);
  std::map<int64_t, int64_t> found;
  for (const PlanStage& stage : plan.stages) {
    if (stage.boundary_planes == 0) {
      EXPECT_FALSE(stage.hop_seconds);
      continue;
    }
    found[stage.layers.end.value] = stage.boundary_bytes;
    EXPECT_EQ(stage.boundary_bytes, 2 * stage.boundary_width);
    EXPECT_EQ(stage.boundary_width, stage.boundary_planes * 7168);
    EXPECT_NEAR(*stage.hop_seconds, 100e-6 + static_cast<double>(stage.boundary_bytes) / 1e9, 1e-12);
  }
  EXPECT_EQ(found, bytes);
}

// 3.6: a link that will dominate.
TEST(PlanBalance, WarnsOfASlowLink) {
  PlanOptions options;
  options.stages = 2;
  options.profile = ops::Profile::bf16;
  options.bandwidth = 100e9;
  options.link = PlanLink{0.0, 1e6};  // 2,000 bytes: 2 ms
  const PlanModel slow = even(4, 100'000'000'000);
  EXPECT_THAT(make_plan(slow, options).warnings, ::testing::IsEmpty());
  const PlanModel fast = even(4, 50'000'000);  // 1 ms a stage
  EXPECT_THAT(make_plan(fast, options).warnings,
              ElementsAre(AllOf(HasSubstr("layer 2 takes 2.000 ms"), HasSubstr("dominates"))));
}

TEST(PlanBalance, Bubbles) {
  PlanOptions options;
  options.layers = "2+2";
  const Plan equal = make_plan(even(4, 1000), options);
  EXPECT_NEAR(equal.bubble_full, 0.0, 1e-12);
  EXPECT_NEAR(equal.bubble_alone, 0.5, 1e-12);
  EXPECT_FALSE(equal.tokens_per_second);
  options.layers = "3+1";
  EXPECT_NEAR(make_plan(even(4, 1000), options).bubble_full, 1.0 - 4.0 / 6.0, 1e-12);
  options.layers = "0-3";
  EXPECT_EQ(make_plan(even(4, 1000), options).bubble_alone, 0.0);
  // Hops count for a sequence alone: 2 stages of 1 ms, and a hop of 2 ms.
  options.layers = "2+2";
  options.bandwidth = 1e6;
  options.link = PlanLink{0.002, 1e18};
  const Plan hop = make_plan(even(4, 500), options);
  EXPECT_NEAR(hop.bubble_alone, 1.0 - 2.0 / (2 * 4.0), 1e-9);
  EXPECT_NEAR(hop.bubble_full, 0.0, 1e-12);
  EXPECT_NEAR(*hop.tokens_per_second, 250.0, 1e-6);
  EXPECT_EQ(hop.to_json()["predicted_bubble"]["one_sequence"], hop.bubble_alone);
}

// 3.6: everything that the report states for a stage.
TEST(PlanBalance, Report) {
  PlanOptions options;
  options.layers = "0-30,31-61,62-92";
  options.node_memory = {parse_memory("600GiB")};
  options.bandwidth = 400e9;
  options.link = PlanLink{};
  options.nodes = {"stage-0 (k3-a.example:19001)", "stage-1 (k3-b.example:19001)", "stage-2 (k3-c.example:19001)"};
  options.warnings = {"what was assumed"};
  const Plan plan = make_plan(published(), options);
  const std::string text = plan.to_text();
  for (const char* part :
       {"stage 1 on stage-1 (k3-b.example:19001): layers 31-61 (8 MLA MoE, 23 KDA MoE)", "bytes reserved (", "workspace",
        "read", "boundary before layer 62: 7 planes, width 50176, 100,352 bytes a token, 0.200 ms", "imbalance 1.0",
        "% with one sequence", "limit ", "balance memory", "warning: what was assumed", "warning: sizes are estimated"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const Json json = plan.to_json();
  EXPECT_EQ(json["balance"], "memory");
  EXPECT_EQ(json["stages"][1]["node"], "stage-1 (k3-b.example:19001)");
  EXPECT_EQ(json["stages"][1]["kinds"], (Json{{"MLA MoE", 8}, {"KDA MoE", 23}}));
  EXPECT_NEAR(json["stages"][0]["hop_seconds"].get<double>(), 157.344e-6, 1e-9);
  EXPECT_FALSE(json["stages"][2].contains("hop_seconds"));
  EXPECT_EQ(make_plan(published(), options).to_text(), text);
  EXPECT_EQ(make_plan(published(), options).to_json(), json);
}

TEST(PlanBalance, WrongOptionsAreRefused) {
  const PlanModel model = even(4, 1000);
  const auto refused = [&](const PlanOptions& options) {
    try {
      (void)make_plan(model, options);
      return std::string("accepted");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return std::string(error.what());
    }
  };
  for (const std::string layers : {"", "2+2"}) {
    PlanOptions options;
    options.stages = 2;
    options.layers = layers;
    options.node_bandwidth = {1e9};
    EXPECT_THAT(refused(options), AllOf(HasSubstr("P07"), HasSubstr("bandwidths of 2 stages, found 1")));
    options.node_bandwidth = {1e9, -1.0};
    EXPECT_THAT(refused(options), HasSubstr("found -1"));
    options.node_bandwidth.clear();
    options.nodes = {"a", "b", "c"};
    EXPECT_THAT(refused(options), AllOf(HasSubstr("P07"), HasSubstr("nodes of 2 stages, found 3")));
    options.nodes.clear();
    options.link = PlanLink{-1.0, 1e9};
    EXPECT_THAT(refused(options), HasSubstr("link: wanted"));
    options.link = PlanLink{0.0, 0.0};
    EXPECT_THAT(refused(options), HasSubstr("link: wanted"));
  }
  EXPECT_EQ(parse_balance("latency"), PlanBalance::latency);
  EXPECT_THROW((void)parse_balance("Latency"), Error);
}

// A very slow and a very fast node do not overflow the times.
TEST(PlanBalance, ExtremeBandwidths) {
  PlanOptions options;
  options.stages = 2;
  options.balance = PlanBalance::compute;
  for (const double slow : {1e-300, 1e-9, 1.0}) {
    options.node_bandwidth = {slow, 1e15};
    EXPECT_THAT(sizes(make_plan(published(), options)), ElementsAre(1, 92)) << slow;
  }
}

// K15: kinds of layers have prices of their own, which are the sums of their tensors' headers.
TEST(PlanBalance, K15PricesEqualHeaders) {
  const Checkpoint checkpoint(fixture("tiny-k3-8l"));
  const PlanModel model = plan_model(checkpoint);
  std::map<int64_t, int64_t> stored;  // bytes of each layer, from the files' own headers
  for (const InventoryFile& file : checkpoint.inventory().files()) {
    const ReadFile shard(fixture("tiny-k3-8l") / file.name);
    uint64_t length = 0;
    shard.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    std::string header(length, '\0');
    shard.read_at(8, std::as_writable_bytes(std::span(header)));
    const Json tensors = parse_json(header, file.name);
    for (const auto& [name, tensor] : tensors.items()) {
      const std::string mark = "model.layers.";
      const size_t at = name.find(mark);
      if (at == std::string::npos || name.starts_with("vision")) continue;
      const Json& range = tensor["data_offsets"];
      stored[std::stoll(name.substr(at + mark.size()))] += range[1].get<int64_t>() - range[0].get<int64_t>();
    }
  }
  ASSERT_EQ(stored.size(), model.layers.size());
  std::map<std::string, std::set<int64_t>> prices;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    EXPECT_EQ(model.layers[l].weights, stored[static_cast<int64_t>(l)]) << l << ": " << model.layers[l].kind;
    prices[model.layers[l].kind].insert(model.layers[l].weights);
  }
  std::set<int64_t> all;
  for (const auto& [kind, of_kind] : prices) {
    EXPECT_EQ(of_kind.size(), 1U) << kind;
    all.insert(of_kind.begin(), of_kind.end());
  }
  EXPECT_EQ(all.size(), prices.size()) << "each kind has its own";
  EXPECT_TRUE(prices.contains("KDA dense") && prices.contains("KDA MoE") && prices.contains("MLA MoE"));
}

}  // namespace
}  // namespace weft
