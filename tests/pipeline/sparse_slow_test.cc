// The complete published layout of Kimi K3 as sparse files: 96 shards, 497,220 tensors, 1,560,936,091,448 bytes (K3 spec 2.1),
// opened, inspected and planned from headers alone.
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/decode_cost.h"
#include "model/fingerprint.h"
#include "model/inspect.h"
#include "model/synth.h"
#include "pipeline/plan.h"

#include "support/models.h"

namespace weft {
namespace {

using testing_support::TemporaryFolder;

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
  EXPECT_LT(usage.ru_maxrss, 500 * 1024);  // KiB
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
}

}  // namespace
}  // namespace weft
