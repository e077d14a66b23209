// The five-layer golden model of K3 spec 8.4: every weight from a stated generator, results in float64 from an independent
// author.
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/state_file.h"
#include "ops/ops.h"
#include "parallel/communicator.h"
#include "pipeline/trace.h"

#include "support/golden_model.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;

constexpr double kTolerance = 1e-4;  // of the row's largest value: "float32 activations should agree to about 1e-4"

struct LogitRow {
  int64_t position;
  int32_t argmax;
  double margin;
  std::array<double, 6> first;  // logits 0..5
  double last;                  // logit 63
  double sum;
  double l2;
};

const std::array<LogitRow, 5> kRows = {{
    {0,
     53,
     0.1028,
     {0.523889077, 1.059950611, 0.276075757, -0.397028261, -0.548816275, -0.271760696},
     -0.253329880,
     -18.161740503,
     6.755540617},
    {5,
     20,
     0.2456,
     {1.078060060, -0.954963802, -0.243577338, 0.410074412, -1.788350206, 0.129391265},
     -1.304590669,
     -4.737093845,
     7.045096923},
    {6,
     22,
     0.1298,
     {0.622817445, 0.053829786, -0.136436058, 0.162354960, 0.301979322, 0.297368279},
     0.561119887,
     10.306413040,
     6.066474714},
    {7,
     24,
     0.3436,
     {0.104890496, -0.129412745, -0.033834390, -1.096907860, -0.414923448, -1.616620136},
     1.016722390,
     -2.657850309,
     6.677426827},
    {8,
     55,
     0.4403,
     {-0.819210923, -0.587749321, 0.024866994, -2.355788041, -0.503243358, -2.059771886},
     0.339585356,
     -15.337711567,
     7.496195236},
}};

struct HiddenRow {
  double sum, l2, first, last;
};
// Running sum after each layer at positions 0 and 5.
const std::array<std::array<HiddenRow, 2>, 5> kHidden = {{
    {{{2.804752891, 2.035915088, 0.776851929, 0.025397528}, {1.439722882, 2.046409548, -0.072077196, -0.673710623}}},
    {{{5.764078651, 4.545284553, 0.428872011, 0.173595962}, {8.584033551, 4.903809395, -0.097643323, -1.679265951}}},
    {{{3.236249907, 4.946551239, 0.449410533, -0.667280105}, {12.981946862, 4.768945664, 0.273812138, 0.927522418}}},
    {{{5.686509093, 6.430246630, -0.584822206, -0.305769708}, {16.570279733, 8.417934776, 2.514103626, -0.346684014}}},
    {{{-2.658688363, 5.322570569, 0.704027375, 1.275474377}, {-0.736628237, 4.896652137, -0.896281205, 1.597795808}}},
}};

struct Norms {
  double sum = 0.0;
  double l2 = 0.0;
};
Norms norms(std::span<const float> row) {
  Norms made;
  for (const float value : row) {
    made.sum += static_cast<double>(value);
    made.l2 += static_cast<double>(value) * static_cast<double>(value);
  }
  made.l2 = std::sqrt(made.l2);
  return made;
}

class FiveLayers : public testing::TestWithParam<ops::Backend> {
 protected:
  FiveLayers() {
    golden::write(folder_.path() / "model");
    checkpoint = std::make_shared<const Checkpoint>(folder_.path() / "model");
    executor = open_executor(checkpoint, {.backend = GetParam()});
    all = golden::kPrompt;  // the prompt and the three tokens whose successors are known too
    all.insert(all.end(), golden::kGreedy.begin(), golden::kGreedy.begin() + 3);
  }
  TemporaryFolder folder_;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<LocalExecutor> executor;
  std::vector<int32_t> all;
};

TEST_P(FiveLayers, LogitsAndGreedyContinuation) {
  const std::vector<float> logits = logits_of(*executor, all, 512);
  for (const LogitRow& wanted : kRows) {
    const std::span<const float> row = std::span(logits).subspan(static_cast<size_t>(wanted.position * golden::kVocab), 64);
    SCOPED_TRACE(fmt::format("position {}", wanted.position));
    const auto best = std::ranges::max_element(row);
    const double limit = kTolerance * static_cast<double>(*best);
    EXPECT_EQ(best - row.begin(), wanted.argmax);
    std::vector<float> sorted(row.begin(), row.end());
    std::ranges::sort(sorted, std::greater());
    EXPECT_NEAR(sorted[0] - sorted[1], wanted.margin, 1e-4);  // given to four digits
    for (size_t i = 0; i < wanted.first.size(); ++i) EXPECT_NEAR(row[i], wanted.first[i], limit) << i;
    EXPECT_NEAR(row[63], wanted.last, limit);
    EXPECT_NEAR(norms(row).sum, wanted.sum, 64 * limit);
    EXPECT_NEAR(norms(row).l2, wanted.l2, kTolerance * wanted.l2);
  }
  EXPECT_EQ(generate(*executor, golden::kPrompt, 4, 512, greedy()), golden::kGreedy);
  EXPECT_EQ(generate(*executor, golden::kPrompt, 4, 1, greedy()), golden::kGreedy);
}

TEST_P(FiveLayers, RunningSumMixAndRouting) {
  TraceCollector collector;
  const Trace trace = run_trace(*executor, golden::kPrompt, {}, collector);
  for (int64_t layer = 0; layer < golden::kLayers; ++layer) {
    const Tensor rows = collector.rows(TracePoint::out, LayerIndex(layer));
    for (const size_t which : {size_t{0}, size_t{1}}) {
      const HiddenRow& wanted = kHidden[static_cast<size_t>(layer)][which];
      const std::span<const float> row = rows.as<float>().subspan(which == 0 ? 0 : 5 * 32, 32);
      SCOPED_TRACE(fmt::format("layer {}, position {}", layer, which == 0 ? 0 : 5));
      EXPECT_NEAR(norms(row).sum, wanted.sum, kTolerance * 32);
      EXPECT_NEAR(norms(row).l2, wanted.l2, kTolerance * wanted.l2);
      EXPECT_NEAR(row[0], wanted.first, kTolerance);
      EXPECT_NEAR(row[31], wanted.last, kTolerance);
    }
  }
  // Routing at position 5.
  const std::array<std::map<size_t, double>, 4> routing = {{{{4, 0.452580446}, {0, 0.547419554}},
                                                            {{7, 0.535706994}, {6, 0.464293006}},
                                                            {{4, 0.480083357}, {3, 0.519916643}},
                                                            {{5, 0.527944815}, {4, 0.472055185}}}};
  for (int64_t layer = 1; layer < golden::kLayers; ++layer) {
    const std::vector<float> weights = dense_weights(trace.routing.at(LayerIndex(layer)), golden::kExperts);
    const std::map<size_t, double>& wanted = routing[static_cast<size_t>(layer - 1)];
    for (size_t expert = 0; expert < 8; ++expert) {
      const double value = static_cast<double>(weights[5 * 8 + expert]);
      EXPECT_NEAR(value, wanted.contains(expert) ? wanted.at(expert) : 0.0, 1e-5) << "layer " << layer << ", expert " << expert;
    }
  }
}

// The probabilities of the output mix, from the blocks that a split before the last layer carries and that layer's output.
TEST_P(FiveLayers, OutputMixProbabilities) {
  TraceCollector collector;
  (void)run_trace(*executor, golden::kPrompt, {}, collector);
  const std::array<Tensor, 4> sources = {collector.rows(TracePoint::embed, LayerIndex(0)),  // frozen at layer 0
                                         collector.rows(TracePoint::out, LayerIndex(1)),    // frozen at layer 2
                                         collector.rows(TracePoint::out, LayerIndex(3)),    // frozen at layer 4
                                         collector.rows(TracePoint::out, LayerIndex(4))};
  std::vector<TensorView> views;
  for (const Tensor& source : sources) views.push_back(source.view());
  Tensor w = checkpoint->vector_f32("model.output_attn_res_norm.weight");
  const Tensor proj = checkpoint->vector_f32("model.output_attn_res_proj.weight");
  for (size_t i = 0; i < 32; ++i) w.as<float>()[i] *= proj.as<float>()[i];
  WorkerPool pool(1);
  SingleRank single_rank;
  ops::Context context{.backend = GetParam(), .profile = ops::Profile::exact, .pool = &pool, .comm = &single_rank};
  Tensor mixed = Tensor::zeros(DType::f32, {6, 32});
  std::vector<float> probabilities(6 * 4);
  ops::residual_mix(context, views, w.view(), 1e-5F, mixed.mutable_view(), probabilities);
  const std::array<double, 4> first = {0.435537268, 0.048840263, 0.222160322, 0.293462148};
  const std::array<double, 4> fifth = {0.623608702, 0.150198924, 0.053184063, 0.173008309};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(probabilities[i], first[i], 1e-5);
    EXPECT_NEAR(probabilities[5 * 4 + i], fifth[i], 1e-5);
  }
  EXPECT_LE(relative_error(mixed.as<float>(), collector.rows(TracePoint::mixed, LayerIndex(4)).as<float>()), 1e-6);
}

TEST_P(FiveLayers, CachesAfterNineTokens) {
  const SequenceId sequence = executor->create();
  (void)feed(*executor, sequence, all, 4);
  const auto path = folder_.path() / "state.safetensors";
  executor->save(sequence, path, {});
  const StateFile state(path);
  const std::span<const float> s = state.tensors().at("layers.0.S").as<float>();  // [2, 16, 16]
  EXPECT_NEAR(s[0], 0.048298390, 1e-5);
  EXPECT_NEAR(s[255], 0.019180406, 1e-5);
  EXPECT_NEAR(norms(s.first(256)).l2, 0.596335992, 1e-4);
  const std::span<const float> latent = state.tensors().at("layers.2.latent").as<float>();  // [9, 8]
  ASSERT_EQ(latent.size(), 72U);
  EXPECT_NEAR(latent[64], 0.979131538, 1e-4);
  EXPECT_NEAR(latent[65], -0.280805658, 1e-4);
  EXPECT_NEAR(latent[66], 0.019804635, 1e-4);
  const std::span<const float> pe = state.tensors().at("layers.2.pe").as<float>();  // [9, 4]
  EXPECT_NEAR(pe[32], -0.098300251, 1e-4);
  EXPECT_NEAR(pe[33], -1.380598867, 1e-4);
}

// K at boundaries 1, 2, 3, 4 is 1, 1, 2, 2, and every split gives the bits of the whole.
TEST_P(FiveLayers, BoundariesCarryTheStatedBlocks) {
  const std::vector<float> whole = logits_of(*executor, golden::kPrompt, 512);
  const std::array<size_t, 4> blocks = {1, 1, 2, 2};
  WorkerPool pool(1);
  SingleRank single_rank;
  for (int64_t cut = 1; cut < golden::kLayers; ++cut) {
    StageOptions first;
    first.layers = {LayerIndex(0), LayerIndex(cut)};
    StageOptions second;
    second.layers = {LayerIndex(cut), LayerIndex(golden::kLayers)};
    const std::unique_ptr<Stage> a = make_stage(checkpoint, first);
    const std::unique_ptr<Stage> b = make_stage(checkpoint, second);
    ops::Context context{.backend = GetParam(), .profile = ops::Profile::exact, .pool = &pool, .comm = &single_rank};
    const auto batch_for = [&](SequenceState& state) {
      Batch batch;
      batch.ids = golden::kPrompt;
      batch.groups.push_back(state.extend(0, batch.rows()));
      batch.logits_rows = {0, 1, 2, 3, 4, 5};
      return batch;
    };
    SequenceState state_a(a->states());
    SequenceState state_b(b->states());
    Stage::Output out = a->forward(context, batch_for(state_a), std::nullopt);
    ASSERT_TRUE(out.boundary);
    EXPECT_EQ(out.boundary->blocks.size(), blocks[static_cast<size_t>(cut - 1)]) << cut;
    EXPECT_EQ(out.boundary->sealed, cut % 2 == 0) << cut;
    // Over the wire form and back.
    const Tensor packed = pack_boundary(*out.boundary, DType::f32);
    EXPECT_EQ(packed.shape(), Shape({6, static_cast<int64_t>(blocks[static_cast<size_t>(cut - 1)] + 1) * 32}));
    const auto received = [&](LayerIndex layer, bool sealed) {
      const auto count = static_cast<int64_t>(blocks[static_cast<size_t>(cut - 1)]);
      return unpack_boundary(packed.view(), sealed, {layer, count, sealed, 32, DType::f32}, 6);
    };
    const Stage::Output end = b->forward(context, batch_for(state_b), received(LayerIndex(cut), cut % 2 == 0));
    EXPECT_TRUE(same_bits(end.logits.as<float>(), whole)) << cut;

    // What does not belong here is refused before anything is computed.
    state_b.fail_step();
    EXPECT_THROW((void)b->forward(context, batch_for(state_b), received(LayerIndex(cut), cut % 2 != 0)), Error) << "sealed";
    state_b.fail_step();
    EXPECT_THROW((void)b->forward(context, batch_for(state_b), received(LayerIndex(cut + 1), cut % 2 == 0)), Error) << "layer";
    state_b.fail_step();
    EXPECT_THROW((void)b->forward(context, batch_for(state_b), std::nullopt), Error) << "absent";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FiveLayers, testing::Values(ops::Backend::reference, ops::Backend::cpu),
                         [](const auto& tested) { return std::string(ops::to_string(tested.param)); });

}  // namespace
}  // namespace weft
