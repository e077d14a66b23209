// The complete published layout of Kimi K3 as sparse files: 96 shards, 497,220 tensors, 1,560,936,091,448 bytes (K3 spec 2.1),
// opened, inspected and planned from headers alone.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/worker_pool.h"
#include "model/boundary.h"
#include "model/checkpoint.h"
#include "model/decode_cost.h"
#include "model/fingerprint.h"
#include "model/inspect.h"
#include "model/sequence_state.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "model/synth.h"
#include "parallel/communicator.h"
#include "pipeline/plan.h"
#include "tensor/workspace.h"

#include "support/models.h"
#include "support/sanitizer.h"

namespace weft {
namespace {

using testing_support::TemporaryFolder;

PlanOptions manual(const std::string& layers) {
  PlanOptions options;
  options.layers = layers;
  return options;
}

// "12+12+12+9"
std::string steps(int64_t layers, int64_t step) {
  std::string text;
  for (int64_t l = 0; l < layers; l += step) text += fmt::format("{}{}", l > 0 ? "+" : "", std::min(step, layers - l));
  return text;
}

double largest_gb(const Plan& plan) {
  int64_t most = 0;
  for (const PlanStage& stage : plan.stages) most = std::max(most, stage.weights);
  return static_cast<double>(most) / 1e9;
}

// A stage of one layer at the published geometry, from nothing but that layer's files: it opens, and runs a row. All weights
// are zero, so that the layer adds nothing to what comes in.
void run_one_layer(const std::filesystem::path& dir, int64_t layer, const std::vector<std::string>& files) {
  SCOPED_TRACE(layer);
  const LayerRange range{LayerIndex(layer), LayerIndex(layer + 1)};
  const auto checkpoint = std::make_shared<const Checkpoint>(dir, CheckpointOptions{.layers = range});
  std::vector<std::string> opened;
  for (const InventoryFile& file : checkpoint->inventory().files()) opened.push_back(file.name);
  EXPECT_EQ(opened, files);
  StageOptions options;
  options.layers = range;
  options.profile = ops::Profile::bf16;
  options.fingerprint = std::string(64, '0');
  const std::unique_ptr<Stage> stage = make_stage(checkpoint, options);

  WorkerPool pool(2);
  SingleRank single_rank;
  Workspace workspace(stage->device());
  ops::Context context{.backend = ops::Backend::cpu, .profile = options.profile, .pool = &pool, .comm = &single_rank};
  context.device = &stage->device();
  context.workspace = &workspace;
  const ModelConfig& config = checkpoint->config();
  const auto row = [&](float first) {
    Tensor tensor = Tensor::zeros(DType::f32, Shape{1, config.hidden_size});
    tensor.as<float>()[0] = first;
    return std::make_shared<const Tensor>(std::move(tensor));
  };
  Boundary in;
  in.layer = range.begin;
  in.hidden = row(1.5F);
  for (int64_t k = 0; k < config.blocks_before(range.begin); ++k) in.blocks.push_back(row(static_cast<float>(k) + 1.0F));
  in.sealed = config.starts_block(range.begin);
  SequenceState state(stage->states());
  Batch batch;
  batch.ids = {7};
  batch.groups.push_back(state.extend(0, 1));
  const Stage::Output output = stage->forward(context, batch, in);
  (void)state.commit();
  ASSERT_TRUE(output.boundary);
  EXPECT_EQ(output.boundary->layer, range.end);
  EXPECT_EQ(output.boundary->planes(), config.blocks_before(range.end) + 1);
  const std::span<const float> hidden = output.boundary->hidden->as<float>();
  ASSERT_EQ(std::ssize(hidden), config.hidden_size);
  // Where a residual block begins, what came in is that block, and the running sum begins anew.
  const bool begins = config.starts_block(range.begin);
  EXPECT_EQ(hidden[0], begins ? 0.0F : 1.5F);
  if (begins) {
    EXPECT_EQ(output.boundary->blocks.back()->as<float>()[0], 1.5F);
  }
  EXPECT_TRUE(std::ranges::all_of(hidden.subspan(1), [](float value) { return value == 0.0F; }));
}

TEST(PublishedLayout, ToTheByte) {
  const TemporaryFolder dir;
  SynthOptions options;
  options.sparse = true;
  options.out = dir.path() / "k3";
  const SynthReport report = synthesize(options);
  EXPECT_EQ(report.shards, 96);
  EXPECT_EQ(report.tensors, 497'220);
  EXPECT_EQ(report.file_bytes, 1'560'936'091'448);
  EXPECT_EQ(report.data_bytes, 1'560'860'324'864);

  const Inspection k3 = inspect({.model = options.out});
  EXPECT_EQ(k3.files, 96);
  EXPECT_EQ(k3.tensors, 497'220);
  EXPECT_EQ(k3.file_bytes, 1'560'936'091'448);
  EXPECT_EQ(k3.text.tensors, 497'052);
  EXPECT_EQ(k3.text.parameters, 2'779'484'478'208);
  EXPECT_EQ(k3.text.bytes, 1'559'965'606'912);
  // K3 spec 4.2.
  using Row = std::tuple<std::string, int64_t, int64_t, int64_t>;
  std::vector<Row> rows;
  for (const Inspection::Class& c : k3.classes) rows.emplace_back(c.name, c.parameters, c.bytes, c.tensors);
  EXPECT_THAT(rows, ::testing::ElementsAre(
                        Row{"routed experts", 2'722'740'830'208, 1'446'456'066'048, 494'592},
                        Row{"KDA attention", 30'618'088'704, 61'258'257'408, 966},
                        Row{"shared experts", 12'155'092'992, 24'310'185'984, 276},
                        Row{"MLA attention", 5'572'706'304, 11'145'412'608, 192},
                        Row{"latent MoE", 4'727'310'336, 9'454'620'672, 276}, Row{"embedding", 1'174'405'120, 2'348'810'240, 1},
                        Row{"lm_head", 1'174'405'120, 2'348'810'240, 1}, Row{"dense MLP", 726'663'168, 1'453'326'336, 3},
                        Row{"router", 590'955'008, 1'182'074'880, 184}, Row{"AttnRes", 2'680'832, 5'361'664, 374},
                        Row{"norms", 1'340'416, 2'680'832, 187}, Row{"not loaded", 0, 894'717'952, 168}));
  EXPECT_EQ(k3.layers[0].bytes, 2'341'213'184);
  EXPECT_EQ(k3.layers[1].tensors, 5404);
  EXPECT_EQ(k3.layers[92].tensors, 5398);
  EXPECT_THAT(k3.layers[7].files, ::testing::ElementsAre("model-00008-of-000096.safetensors"));

  const Checkpoint checkpoint(options.out);
  PlanOptions plan;
  plan.stages = 3;
  plan.node_memory = {parse_memory("512GiB")};
  const PlanModel model = plan_model(checkpoint);
  EXPECT_THROW((void)make_plan(model, plan), Error);
  plan.reserve_fraction = 0.03;
  const Plan made = make_plan(model, plan);
  EXPECT_EQ(made.stages[2].layers, (LayerRange{LayerIndex(62), LayerIndex(93)}));
  EXPECT_EQ(made.stages[2].weights - made.stages[2].vectors, 525'231'009'280);
  EXPECT_EQ(made.stages[1].shards.size(), 31U);
  EXPECT_EQ(made.read_per_token, 136'990'317'568);
  // K3 spec 4.3: products, KDA, and MLA for each pair of a token and one at or before it; the head once.
  const double one = prefill_operations(checkpoint, TokenCount(1));
  EXPECT_NEAR(one, 2 * 104.19e9 + 0.760e9 + 5'013'504, 0.05e9);
  const double head = 2.0 * 163840 * 7168;
  EXPECT_NEAR(prefill_operations(checkpoint, TokenCount(3)), 3 * (one - head) + head + 3 * 5'013'504.0, 1e3);
  EXPECT_EQ(checkpoint.mapped().shards, 0);
  EXPECT_EQ(model_fingerprint(checkpoint, ops::Profile::exact).size(), 64U);

  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  if (!testing_support::kSanitizer) {
    EXPECT_LT(usage.ru_maxrss, 500 * 1024);  // KiB
  }

  // Ruling R2: with the default reserve three nodes are refused and four do.
  PlanOptions nodes;
  nodes.stages = 4;
  nodes.node_memory = {parse_memory("512GiB")};
  const Plan four = make_plan(model, nodes);
  for (const PlanStage& stage : four.stages) EXPECT_LE(stage.used(), *stage.budget);
  EXPECT_EQ(four.stages.back().shards.back(), "model-00094-of-000096.safetensors");
  // K3 spec 5, balanced cuts: the stated ones, and the plan's own, which is as good.
  for (const auto& [stages, step, largest] :
       std::vector<std::tuple<int64_t, int64_t, double>>{{8, 12, 202.6}, {12, 8, 135.1}, {16, 6, 101.5}, {24, 4, 67.5}}) {
    const Plan stated = make_plan(model, manual(steps(93, step)));
    ASSERT_EQ(std::ssize(stated.stages), stages);
    EXPECT_NEAR(largest_gb(stated), largest, 0.06) << stages;
    PlanOptions balanced;
    balanced.stages = stages;
    balanced.sequences = 0;
    EXPECT_NEAR(largest_gb(make_plan(model, balanced)), largest, 0.06) << stages;
    // File l + 1 holds layer l; file 94 embedding, head and norms.
    for (size_t s = 0; s < stated.stages.size(); ++s) {
      const bool end = s == 0 || s + 1 == stated.stages.size();
      EXPECT_EQ(std::ssize(stated.stages[s].shards), stated.stages[s].layers.size() + (end ? 1 : 0)) << s;
    }
  }
  std::vector<int64_t> bytes;
  for (const PlanStage& stage : make_plan(model, manual("0,1-11,12,13-23,24-30,31-46,47,48-61,62-83,84-91,92")).stages)
    if (stage.boundary_planes > 0) bytes.push_back(stage.boundary_bytes);
  EXPECT_THAT(bytes, ::testing::ElementsAre(28'672, 28'672, 43'008, 43'008, 57'344, 71'680, 71'680, 100'352, 114'688, 129'024));
  EXPECT_EQ(checkpoint.mapped().shards, 0);

  run_one_layer(options.out, 3, {"model-00004-of-000096.safetensors"});   // MLA
  run_one_layer(options.out, 12, {"model-00013-of-000096.safetensors"});  // KDA, and seals a block
}

// Qwen3-Next 80B-A3B in bf16 (Qwen3-Next spec 2.1, 4.1, 4.2 and 5).
TEST(PublishedLayout, Qwen3Next) {
  const TemporaryFolder dir;
  SynthOptions options;
  options.preset = "qwen3-next";
  options.sparse = true;
  options.out = dir.path() / "qwen";
  (void)synthesize(options);
  const Inspection qwen = inspect({.model = options.out});
  EXPECT_EQ(qwen.text.parameters, 79'674'391'296);
  EXPECT_EQ(qwen.text.bytes, 2 * 79'674'391'296LL);
  using Row = std::tuple<std::string, int64_t>;
  std::vector<Row> rows;
  for (const Inspection::Class& c : qwen.classes) rows.emplace_back(c.name, c.parameters);
  EXPECT_THAT(rows, ::testing::ElementsAre(Row{"routed experts", 48 * 1'610'612'736LL}, Row{"shared experts", 48 * 3'145'728},
                                           Row{"gated DeltaNet", 36 * 33'718'464LL}, Row{"GQA attention", 12 * 27'263'488},
                                           Row{"embedding", 311'164'928}, Row{"lm_head", 311'164'928},
                                           Row{"router", 48 * 1'050'624}, Row{"norms", 198'656}));
  EXPECT_EQ(qwen.layers[3].kind, "GQA MoE");
  EXPECT_EQ(qwen.layers[4].kind, "GDN MoE");

  const Checkpoint checkpoint(options.out);
  const PlanModel model = plan_model(checkpoint);
  PlanOptions plan;
  plan.stages = 1;
  plan.profile = ops::Profile::bf16;
  const Plan made = make_plan(model, plan);
  EXPECT_EQ(made.read_per_token, 2 * (3'252'599'552LL + 311'164'928 + 2048));  // active weights, head, one row of the embedding
  EXPECT_EQ(checkpoint.mapped().shards, 0);

  // Qwen3-Next spec 5: two stages of 24 layers, 6 of them GQA; 3.297 and 3.284 GB a layer, 0.622 of embedding and head; one
  // tensor of 4,096 bytes a token crosses.
  plan.stages = 2;
  const Plan two = make_plan(model, plan);
  for (const PlanStage& stage : two.stages) {
    EXPECT_EQ(stage.layers.size(), 24);
    EXPECT_THAT(stage.kinds, ::testing::UnorderedElementsAre(std::pair("GDN MoE", 18), std::pair("GQA MoE", 6)));
    EXPECT_NEAR(static_cast<double>(stage.weights) / 1e9, 18 * 3.297 + 6 * 3.284 + 0.622, 0.02);
  }
  EXPECT_EQ(two.weights, qwen.text.bytes);
  EXPECT_EQ(two.stages[0].boundary_planes, 1);
  EXPECT_EQ(two.stages[0].boundary_bytes, 4096);
  EXPECT_LT(two.imbalance, 1.01);
  EXPECT_EQ(checkpoint.mapped().shards, 0);
  for (const int64_t layer : {3, 4}) {  // GQA, gated DeltaNet
    std::vector<std::string> files;
    for (const int64_t shard : model.layers[static_cast<size_t>(layer)].shards)
      files.push_back(model.shard_names[static_cast<size_t>(shard)]);
    run_one_layer(options.out, layer, files);
  }
}

}  // namespace
}  // namespace weft
