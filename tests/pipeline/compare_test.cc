// Traces as files, forced routing, single layers from a reference's input, and the comparison of two runs.
#include "pipeline/compare.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/layer_run.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<int32_t> kIds = {3, 14, 15, 9, 26, 53, 5, 8, 97, 9, 32};

class Compare : public testing::Test {
 protected:
  static Trace run(const std::shared_ptr<const Checkpoint>& model, const TraceOptions& options = {},
                   const ModelSetup& setup = {}) {
    const auto executor = open_executor(model, setup);
    TraceCollector collector;
    return run_trace(*executor, kIds, options, collector);
  }
  std::shared_ptr<const Checkpoint> checkpoint = std::make_shared<const Checkpoint>(fixture("tiny-k3-8l"));
  Trace trace = run(checkpoint);
  TemporaryFolder folder;
};

void expect_same_routing(const Routing& a, const Routing& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [layer, routing] : a) {
    const LayerRouting& other = b.at(layer);
    EXPECT_TRUE(std::ranges::equal(routing.experts.as<int32_t>(), other.experts.as<int32_t>())) << layer.value;
    EXPECT_TRUE(same_bits(routing.weights.as<float>(), other.weights.as<float>())) << layer.value;
    EXPECT_TRUE(same_bits(routing.margins.as<float>(), other.margins.as<float>())) << layer.value;
  }
}

TEST_F(Compare, AWrittenTraceReadsBack) {
  const auto path = folder.path() / "trace.safetensors";
  write_trace(path, trace, true);
  const Trace read = read_trace(path);
  EXPECT_EQ(read.ids, kIds);
  EXPECT_TRUE(same_bits(read.logits.as<float>(), trace.logits.as<float>()));
  EXPECT_TRUE(same_bits(read.hidden.as<float>(), trace.hidden.as<float>()));
  EXPECT_EQ(read.routing.size(), 7U);  // all layers but the first are MoE
  expect_same_routing(read.routing, trace.routing);
}

TEST_F(Compare, FilesThatAreNoTraceAreRefused) {
  const auto refusal = [](const std::filesystem::path& path) -> std::string {
    try {
      (void)read_trace(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(refusal(fixture("tiny-k3-8l") / "goldens.safetensors"), HasSubstr("tensor 'ids': wanted one, found none"));
  const auto path = folder.path() / "trace.safetensors";
  const std::vector<TensorSpec> specs = {{"ids", DType::i32, {2}}, {"logits", DType::f32, {3, 4}}};
  SafetensorsWriter writer(path, specs);
  writer.append("ids", std::vector<std::byte>(8));
  writer.append("logits", std::vector<std::byte>(48));
  writer.finish();
  EXPECT_THAT(refusal(path), HasSubstr("tensor 'logits': wanted F32 [2, -1] (-1: any), found F32 [3, 4]"));
}

TEST_F(Compare, ARunForcedToItsOwnRoutingIsTheSameRun) {
  for (const int64_t chunk : {1, 4, 512}) {
    const Trace forced = run(checkpoint, {.chunk = chunk, .routing = &trace.routing}, {.cuts = {3}});
    EXPECT_TRUE(same_bits(forced.logits.as<float>(), trace.logits.as<float>())) << chunk;
    expect_same_routing(forced.routing, trace.routing);
  }
}

// Other experts for one token of one layer: that layer's output changes from that token on and nowhere before, and the trace
// still says what the router chose.
TEST_F(Compare, ForcedExpertsAreTaken) {
  constexpr int64_t kLayer = 2;
  constexpr int64_t kToken = 4;
  Routing routing = trace.routing;
  const std::span<int32_t> experts = routing.at(LayerIndex(kLayer)).experts.as<int32_t>();
  const auto chosen = static_cast<size_t>(routing.at(LayerIndex(kLayer)).experts.shape()[1]);
  const std::span<int32_t> row = experts.subspan(kToken * chosen, chosen);
  row.back() = row.back() == 7 ? 6 : row.back() + 1;  // eight experts, ascending
  std::ranges::sort(row);
  ASSERT_EQ(std::ranges::adjacent_find(row), row.end());
  const Trace forced = run(checkpoint, {.routing = &routing});
  const auto width = static_cast<size_t>(trace.hidden.shape()[2]);
  const auto output = [&](const Trace& made, int64_t layer, size_t first, size_t count) {
    const auto tokens = kIds.size();
    return made.hidden.as<float>().subspan((static_cast<size_t>(layer + 1) * tokens + first) * width, count * width);
  };
  EXPECT_TRUE(same_bits(output(forced, kLayer - 1, 0, kIds.size()), output(trace, kLayer - 1, 0, kIds.size())));
  EXPECT_TRUE(same_bits(output(forced, kLayer, 0, kToken), output(trace, kLayer, 0, kToken)));
  EXPECT_FALSE(same_bits(output(forced, kLayer, kToken, 1), output(trace, kLayer, kToken, 1)));
  EXPECT_TRUE(same_bits(output(forced, kLayer, kToken + 1, 1), output(trace, kLayer, kToken + 1, 1)));
  EXPECT_TRUE(std::ranges::equal(forced.routing.at(LayerIndex(kLayer)).experts.as<int32_t>(),
                                 trace.routing.at(LayerIndex(kLayer)).experts.as<int32_t>()));
}

TEST_F(Compare, ARoutingThatDoesNotFitIsRefused) {
  const auto refusal = [&](const Routing& routing) -> std::string {
    try {
      (void)run(checkpoint, {.routing = &routing});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "none";
  };
  Routing routing = trace.routing;
  routing.erase(LayerIndex(3));
  EXPECT_THAT(refusal(routing), HasSubstr("layer 3: wanted the experts of this layer, found none"));
  routing = trace.routing;
  routing.at(LayerIndex(1)).experts = Tensor::zeros(DType::i32, {11, 5});
  EXPECT_THAT(refusal(routing), HasSubstr("experts per token, found 5"));
  routing = trace.routing;
  routing.at(LayerIndex(1)).experts = Tensor::zeros(DType::i32, {10, routing.at(LayerIndex(1)).experts.shape()[1]});
  EXPECT_THAT(refusal(routing), HasSubstr("layer 1: wanted 11 tokens, found 10"));
  routing = trace.routing;
  routing.at(LayerIndex(1)).experts.as<int32_t>()[1] = 1000;
  EXPECT_THAT(refusal(routing), HasSubstr("wanted ascending experts in [0, "));
}

// A layer fed with the reference's input gives the reference's output, to the bit where the numbers are the same.
TEST_F(Compare, LayersFromTheReferencesInputAreTheReference) {
  for (const std::string name : {"tiny-k3-8l", "tiny-kimi-linear"}) {
    const auto model = std::make_shared<const Checkpoint>(fixture(name));
    const Trace reference = run(model);
    const Trace layers = run_layers(model, {.threads = 2}, reference);
    EXPECT_TRUE(same_bits(layers.hidden.as<float>(), reference.hidden.as<float>())) << name;
    EXPECT_TRUE(same_bits(layers.logits.as<float>(), reference.logits.as<float>())) << name;
    expect_same_routing(layers.routing, reference.routing);
    const Comparison comparison = compare_traces(layers, reference);
    EXPECT_TRUE(comparison.passed());
    EXPECT_EQ(comparison.outputs.size(), static_cast<size_t>(model->config().layer_count) + 2);
    for (const OutputDifference& output : comparison.outputs) EXPECT_EQ(output.l2, 0.0) << output.name;
  }
}

TEST_F(Compare, AReferenceOfAnotherModelIsRefused) {
  const auto other = std::make_shared<const Checkpoint>(fixture("tiny-k3-26l"));
  EXPECT_THROW((void)run_layers(other, {}, trace), Error);
  EXPECT_THROW((void)compare_traces(run(other), trace), Error);
  Trace tokens = trace;
  ++tokens.ids[0];
  EXPECT_THROW((void)compare_traces(tokens, trace), Error);
}

// Each of the limits on its own.
TEST_F(Compare, WhatFailsTheGate) {
  const auto elements = static_cast<size_t>(trace.hidden.elements() / trace.hidden.shape()[0]);
  const auto layer_of = [&](Trace& made, size_t layer) {
    return made.hidden.as<float>().subspan((layer + 1) * elements, elements);
  };
  const auto only_failure = [&](const Trace& made) {
    std::string failed;
    for (const OutputDifference& output : compare_traces(made, trace).outputs) failed += output.passed() ? "" : output.name;
    return failed;
  };
  Trace made = trace;
  for (float& value : layer_of(made, 2)) value *= 1.004F;
  EXPECT_TRUE(compare_traces(made, trace).passed());
  EXPECT_NEAR(compare_traces(made, trace).outputs[3].l2, 0.004, 1e-5);
  EXPECT_NEAR(compare_traces(made, trace).outputs[3].mean_abs, 0.004, 1e-5);
  for (float& value : layer_of(made, 2)) value *= 1.0015F;  // L2 0.0055, mean abs 0.55 %
  EXPECT_EQ(only_failure(made), "layer 2");

  made = trace;
  for (size_t i = 0; i < elements; ++i) layer_of(made, 4)[i] *= i % 2 == 0 ? 1.011F : 0.989F;  // the mean stays
  EXPECT_EQ(only_failure(made), "layer 4");
  made = trace;
  made.logits.as<float>()[7] = NAN;
  EXPECT_EQ(only_failure(made), "logits");
  made = trace;
  made.hidden.as<float>()[0] = INFINITY;
  EXPECT_EQ(only_failure(made), "embedding");

  made = trace;
  for (float& weight : made.routing.at(LayerIndex(5)).weights.as<float>()) weight *= 1.02F;
  EXPECT_EQ(only_failure(made), "layer 5");
}

TEST_F(Compare, FlipsAreListedWithTheirMargins) {
  Trace reference = trace;
  Trace made = trace;
  const auto set = [](Trace& which, std::vector<int32_t> experts, float margin) {
    LayerRouting& routing = which.routing.at(LayerIndex(6));
    const auto chosen = static_cast<size_t>(routing.experts.shape()[1]);
    std::ranges::copy(experts, routing.experts.as<int32_t>().begin() + static_cast<ptrdiff_t>(2 * chosen));
    routing.margins.as<float>()[2] = margin;
  };
  const auto chosen = static_cast<size_t>(trace.routing.at(LayerIndex(6)).experts.shape()[1]);
  ASSERT_EQ(chosen, 2U);
  set(reference, {1, 4}, 0.002F);
  set(made, {4, 6}, 0.001F);
  Comparison comparison = compare_traces(made, reference);
  ASSERT_EQ(comparison.flips.size(), 1U);
  const Flip& flip = comparison.flips.front();
  EXPECT_EQ(flip.layer, LayerIndex(6));
  EXPECT_EQ(flip.token, 2);
  EXPECT_THAT(flip.chosen, ElementsAre(6));
  EXPECT_THAT(flip.not_chosen, ElementsAre(1));
  EXPECT_EQ(flip.margin, 0.002F);
  EXPECT_EQ(flip.own_margin, 0.001F);
  EXPECT_TRUE(comparison.passed());
  EXPECT_THAT(comparison.to_text(),
              HasSubstr("ok    layer 6, token 2: expert 6 instead of 1, margin 1.00e-03 (reference 2.00e-03)\n"));
  EXPECT_EQ(comparison.to_json().at("flips").at(0).at("not_chosen"), Json::array({1}));

  set(reference, {1, 4}, 0.02F);  // not a near tie
  comparison = compare_traces(made, reference);
  EXPECT_FALSE(comparison.passed());
  EXPECT_THAT(comparison.to_text(), HasSubstr("FAIL  layer 6, token 2"));
}

}  // namespace
}  // namespace weft
