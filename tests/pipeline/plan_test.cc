// Plans: rulings R2, distributed.md 3.4, 3.5 and 3.7, K3 spec 4.1, 4.3 and 5.
#include "pipeline/plan.h"

#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/golden_model.h"
#include "support/models.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using testing_support::TemporaryFolder;

// The published model. Sizes from the configuration equal those of the release but for the zero tail of A_log: 32 values of 69
// layers.
PlanModel published() {
  PlanModel model =
      plan_model(parse_model_config(read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json"), "config.json"));
  for (PlanModel::Layer& layer : model.layers)
    if (layer.kind.starts_with("KDA")) {
      layer.weights += 32 * 4;
      layer.read += 32 * 4;
    }
  model.estimated = false;
  return model;
}

std::string refusal(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
}

std::vector<std::pair<int64_t, int64_t>> inclusive(const Plan& plan) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const PlanStage& stage : plan.stages) ranges.emplace_back(stage.layers.begin.value, stage.layers.end.value - 1);
  return ranges;
}

TEST(Plan, StateBeyondAllMemoryIsRefused) {
  PlanOptions options;
  options.stages = 1;
  options.sequences = 1 << 20;
  options.tokens = TokenCount(1LL << 40);
  EXPECT_THAT(refusal([&] { (void)make_plan(published(), options); }, ErrorKind::bad_input),
              HasSubstr("wanted sequences and tokens whose state has at most"));
}

// Ruling R2.
TEST(Plan, ThreeNodesOf512) {
  const PlanModel model = published();
  PlanOptions options;
  options.stages = 3;
  options.node_memory = {parse_memory("512 GB")};
  const std::string refused = refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible);
  EXPECT_THAT(refused, HasSubstr("P09"));
  EXPECT_THAT(refused, HasSubstr("525,231,009,280"));
  for (const char* stage : {"stage 0 (layers 0-30)", "stage 1 (layers 31-61)", "stage 2 (layers 62-92)"})
    EXPECT_THAT(refused, HasSubstr(stage));
  EXPECT_THAT(refused, HasSubstr("4 nodes"));

  options.reserve_fraction = 0.03;
  const Plan plan = make_plan(model, options);
  EXPECT_THAT(inclusive(plan), ::testing::ElementsAre(std::pair(0, 30), std::pair(31, 61), std::pair(62, 92)));
  // The ruling's number holds layers and head; the exact sum has the final norm and the output mix (three vectors of D) beside
  // them.
  EXPECT_EQ(plan.stages[2].weights - plan.stages[2].vectors, 525'231'009'280);
  EXPECT_EQ(plan.stages[2].vectors, 3 * 7168 * 2);
  EXPECT_EQ(plan.weights, 1'559'965'606'912);
  EXPECT_EQ(plan.profile, ops::Profile::bf16);
  // K3 spec 5: boundaries before layers 31 and 62 in bf16.
  EXPECT_EQ(plan.stages[0].boundary_planes, 4);
  EXPECT_EQ(plan.stages[0].boundary_width, 28672);
  EXPECT_EQ(plan.stages[0].boundary_bytes, 57'344);
  EXPECT_EQ(plan.stages[1].boundary_width, 50176);
  EXPECT_EQ(plan.stages[1].boundary_bytes, 100'352);
  EXPECT_EQ(plan.stages[2].boundary_planes, 0);
  EXPECT_THAT(plan.to_text(), HasSubstr("525,231,009,280"));
  EXPECT_EQ(plan.to_json()["stages"][2]["layer_and_head_bytes"], 525'231'009'280);

  options.reserve_fraction = 0.08;
  options.stages = 4;
  EXPECT_EQ(make_plan(model, options).stages.size(), 4U);
}

// K3 spec 4.1 and 4.3. The published 449,372,160 and 27,648 bytes count convolution rows and latents as bf16; this program's
// pool holds them in float32.
TEST(Plan, PublishedStateAndTraffic) {
  const PlanModel model = published();
  PlanOptions options;
  options.bandwidth = 137e9;
  const Plan one = make_plan(model, options);
  EXPECT_EQ(one.stages[0].state_fixed, 449'372'160 + 15'261'696);
  EXPECT_EQ(one.stages[0].state_per_token, 2 * 27'648);
  EXPECT_EQ(one.read_per_token, 136'990'317'568);
  EXPECT_NEAR(*one.tokens_per_second, 1.0, 1e-3);
  options.profile = ops::Profile::exact;
  const Plan exact = make_plan(model, options);
  EXPECT_EQ(exact.stages[0].state_fixed, 434'110'464 + 2 * 15'261'696);
  EXPECT_EQ(exact.stages[0].state_per_token, 2 * 27'648);
}

// K3 spec 5, "balanced cuts by bytes": without limits and state, 8, 12, 16 and 24 stages are as balanced as stated there.
TEST(Plan, BalancedCutsOfTheSpecification) {
  const PlanModel model = published();
  for (const auto& [stages, largest] :
       std::vector<std::pair<int64_t, double>>{{8, 202.6}, {12, 135.1}, {16, 101.5}, {24, 67.5}}) {
    PlanOptions options;
    options.stages = stages;
    options.sequences = 0;
    const Plan plan = make_plan(model, options);
    int64_t most = 0;
    for (const PlanStage& stage : plan.stages) most = std::max(most, stage.weights);
    EXPECT_NEAR(static_cast<double>(most) / 1e9, largest, 0.06) << stages;
  }
}

// K3 spec 4.1: 896 experts of 3 matrices; what a GPU adds is alignment, float32 vectors and a table of its experts.
TEST(Plan, OnAGpu) {
  const PlanModel model = published();
  PlanOptions options;
  options.stages = 3;
  options.prefill_chunk = 64;
  const Plan cpu = make_plan(model, options);
  options.gpu = true;
  const Plan gpu = make_plan(model, options);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_GT(gpu.stages[s].weights, cpu.stages[s].weights);
    EXPECT_LT(static_cast<double>(gpu.stages[s].weights), 1.001 * static_cast<double>(cpu.stages[s].weights));
    EXPECT_EQ(gpu.stages[s].state, cpu.stages[s].state);
  }
  // The head's logits are wanted on the last stage only: 64 rows of 163,840 (kPlannedLogitsRows).
  EXPECT_GT(gpu.stages[2].workspace, gpu.stages[1].workspace + int64_t{60} * 163840 * 4);
}

TEST(Plan, ManualSplit) {
  const auto ranges = [](std::string_view spec, int64_t layers, std::optional<int64_t> stages = std::nullopt) {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (const LayerRange& r : parse_layer_ranges(spec, layers, stages)) out.emplace_back(r.begin.value, r.end.value);
    return out;
  };
  EXPECT_THAT(ranges("0-3,4-7", 8), ::testing::ElementsAre(std::pair(0, 4), std::pair(4, 8)));
  EXPECT_THAT(ranges(" 0 - 3 , 4, 5-7 ", 8), ::testing::ElementsAre(std::pair(0, 4), std::pair(4, 5), std::pair(5, 8)));
  EXPECT_THAT(ranges("4+1+3", 8, 3), ::testing::ElementsAre(std::pair(0, 4), std::pair(4, 5), std::pair(5, 8)));
  struct Case {
    const char* spec;
    const char* code;
    const char* mention;
  };
  for (const Case& c : std::vector<Case>{{"", "P01", "empty"},
                                         {"  ", "P01", "empty"},
                                         {"0-3,x,4-7", "P02", "'x'"},
                                         {"0-3,", "P02", "item 2"},
                                         {"0-3,-4-7", "P02", "'-4-7'"},
                                         {"0--3", "P02", "0--3"},
                                         {"3+y", "P02", "'y'"},
                                         {"0-99999999999999999999", "P02", "item 1"},
                                         {"3-0,4-7", "P03", "3"},
                                         {"0+8", "P03", "0"},
                                         {"0-3,4-8", "P04", "8"},
                                         {"4+5", "P04", "8"},
                                         {"0-3,5-7", "P05", "wanted start 4, found 5"},
                                         {"0-3,3-7", "P05", "wanted start 4, found 3"},
                                         {"1-7", "P05", "wanted start 0, found 1"},
                                         {"0-3,4-6", "P06", "6"},
                                         {"4+3", "P06", "6"}}) {
    SCOPED_TRACE(c.spec);
    const std::string message = refusal([&] { (void)ranges(c.spec, 8); }, ErrorKind::bad_input);
    EXPECT_THAT(message, HasSubstr(c.code));
    EXPECT_THAT(message, HasSubstr(c.mention));
  }
  EXPECT_THAT(refusal([&] { (void)ranges("0-3,4-7", 8, 3); }, ErrorKind::bad_input), HasSubstr("P07"));

  const PlanModel model = published();
  PlanOptions options;
  options.layers = "0-30,31-61,62-92";
  EXPECT_EQ(make_plan(model, options).stages[2].weights, 525'231'052'288);
  options.node_memory = {parse_memory("512GiB"), parse_memory("512GiB")};
  EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::bad_input), HasSubstr("P07"));
  options.node_memory = {parse_memory("512GiB"), parse_memory("1TiB"), parse_memory("1TiB")};
  const std::string tight = refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible);
  EXPECT_THAT(tight, HasSubstr("P09"));
  EXPECT_THAT(tight, HasSubstr("tightest: stage 0"));
}

TEST(Plan, TooManyStagesAndTooSmallNodes) {
  const PlanModel model = published();
  PlanOptions options;
  options.stages = 94;
  EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible), HasSubstr("P10"));
  options.stages = 3;
  options.node_memory = {parse_memory("2GiB")};
  const std::string embedding = refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible);
  EXPECT_THAT(embedding, HasSubstr("P11: the embedding"));
  options.node_memory = {parse_memory("1TiB"), parse_memory("1TiB"), parse_memory("1GiB")};
  EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible), HasSubstr("P11: the head"));
  options.node_memory = {parse_memory("10GiB")};
  EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible), HasSubstr("no number of nodes"));
  for (const double reserve : {-0.1, 0.5, std::numeric_limits<double>::quiet_NaN()}) {
    options.reserve_fraction = reserve;
    EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::bad_input), HasSubstr("reserve"));
  }
}

// Unequal nodes: the larger node gets more layers.
TEST(Plan, FollowsTheNodes) {
  PlanOptions options;
  options.node_memory = {parse_memory("1TiB"), parse_memory("512GiB"), parse_memory("512GiB")};
  const Plan plan = make_plan(published(), options);
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_GT(plan.stages[0].weights, 3 * plan.stages[1].weights / 2);
}

TEST(Plan, FromHeaders) {
  const TemporaryFolder dir;
  golden::write(dir.path());
  const Checkpoint checkpoint(dir.path());
  PlanOptions options;
  options.layers = "0-1,2-4";
  const Plan plan = make_plan(plan_model(checkpoint), options);
  EXPECT_EQ(plan.profile, ops::Profile::exact);
  EXPECT_FALSE(plan.estimated);
  EXPECT_EQ(plan.stages[0].weights, checkpoint.weight_bytes({LayerIndex(0), LayerIndex(2)}).value);
  EXPECT_EQ(plan.stages[1].weights, checkpoint.weight_bytes({LayerIndex(2), LayerIndex(5)}).value);
  EXPECT_EQ(plan.stages[1].shards, std::vector<std::string>{"model-00002-of-000002.safetensors"});
  EXPECT_EQ(plan.stages[0].shards.size(), 2U);
  EXPECT_THAT(plan.stages[0].kinds, ::testing::ElementsAre(std::pair("KDA dense", 1), std::pair("KDA MoE", 1)));
  EXPECT_EQ(plan.stages[0].boundary_planes, 2);
  EXPECT_EQ(plan.stages[0].boundary_bytes, 2 * 32 * 4);
  EXPECT_EQ(checkpoint.mapped().shards, 0);
}

TEST(Plan, TiedEmbeddingIsHeldTwice) {
  PlanModel model = published();
  const int64_t head = model.head;
  model.tied = true;
  PlanOptions options;
  options.layers = "0-45,46-92";
  const Plan two = make_plan(model, options);
  options.layers = "0-92";
  const Plan one = make_plan(model, options);
  EXPECT_EQ(two.weights - one.weights, model.embedding);
  EXPECT_EQ(model.head, head);
}

// colibri#720: what is free is used.
TEST(Plan, C10KeepsTheExpertsForWhichThereIsRoom) {
  const PlanModel model = published();
  constexpr int64_t kExpertsOfALayer = 15'722'348'544;  // K3 spec 4.2
  for (const int64_t stages : {1, 3}) {
    PlanOptions options;
    options.stages = stages;
    for (const char* text : {"256GiB", "512GiB", "1TiB"}) {
      options.memory = parse_memory(text);
      const Plan plan = make_plan(model, options);
      EXPECT_GE(plan.used(), *options.memory * 85 / 100) << text;
      EXPECT_LE(plan.used(), *plan.budget) << text;
      for (const PlanStage& stage : plan.stages) {
        EXPECT_GE(stage.experts_kept, kExpertsOfALayer) << "a step of 512 rows can name them all";
        EXPECT_LT(stage.experts_kept, stage.experts);
      }
    }
    options.memory = parse_memory("2TiB");
    const Plan whole = make_plan(model, options);
    EXPECT_LT(whole.used(), *whole.budget);
    for (const PlanStage& stage : whole.stages) EXPECT_EQ(stage.experts_kept, stage.experts);
    options.memory = parse_memory("100GiB");
    EXPECT_THAT(refusal([&] { (void)make_plan(model, options); }, ErrorKind::plan_impossible), HasSubstr("P09"));
  }
  PlanOptions both;
  both.memory = 1 << 30;
  both.node_memory = {1 << 30};
  EXPECT_NE(refusal([&] { (void)make_plan(model, both); }, ErrorKind::bad_input), "");
}

TEST(Plan, Memory) {
  EXPECT_EQ(parse_memory("512GiB"), 549'755'813'888);
  EXPECT_EQ(parse_memory("512 GB"), 549'755'813'888);
  EXPECT_EQ(parse_memory("512G"), 549'755'813'888);
  EXPECT_EQ(parse_memory("0.5TiB"), 549'755'813'888);
  EXPECT_EQ(parse_memory(" 549755813888 "), 549'755'813'888);
  EXPECT_EQ(parse_memory("3B"), 3);
  EXPECT_THAT(parse_memory_list("1GiB,2MiB"), ::testing::ElementsAre(1 << 30, 2 << 20));
  for (const char* text : {"", "GiB", "-1GiB", "1XiB", "1GiBs", "1e3GiB", "nan", "inf", "0", "9999999999TiB", "1 G i B"})
    EXPECT_THAT(refusal([&] { (void)parse_memory(text); }, ErrorKind::bad_input), HasSubstr(text)) << text;
  EXPECT_NE(refusal([&] { (void)parse_memory_list("1GiB,"); }, ErrorKind::bad_input), "");
}

}  // namespace
}  // namespace weft
