// Kimi K3 over stages: acceptance cases K4 to K10, K12, K14 and K15 of distributed.md 11.1, and what crosses (5.7, ruling R1).
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "pipeline/plan.h"
#include "tensor/bf16.h"

#include "support/golden_model.h"
#include "support/models.h"
#include "support/sharded.h"
#include "support/stage_chain.h"

namespace weft {
namespace {

using namespace testing_support;
using testing::HasSubstr;

LayerRange layers(int64_t begin, int64_t end) { return {LayerIndex(begin), LayerIndex(end)}; }
std::string message(const std::function<void()>& body) {
  const auto failure = guard(body);
  return failure ? failure->message : "no error";
}

struct Case {
  std::string model;
  ops::Profile profile;

  friend void PrintTo(const Case& tested, std::ostream* out) { *out << tested.model << " " << ops::to_string(tested.profile); }
};

class K3Cases : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { golden::write(golden_folder().path() / "golden"); }
  static TemporaryFolder& golden_folder() {
    static TemporaryFolder folder;
    return folder;
  }
  // Five layers in blocks of two, or a fixture: eight in blocks of four, 26 in blocks of twelve.
  [[nodiscard]] static std::filesystem::path dir() {
    return GetParam().model == "golden" ? golden_folder().path() / "golden" : fixture(GetParam().model);
  }
  [[nodiscard]] static StageChain chain(const std::vector<int64_t>& cuts) { return {dir(), cuts, GetParam().profile}; }
};

INSTANTIATE_TEST_SUITE_P(Models, K3Cases,
                         testing::Values(Case{"golden", ops::Profile::exact}, Case{"golden", ops::Profile::bf16},
                                         Case{"tiny-k3-8l", ops::Profile::exact}, Case{"tiny-k3-8l", ops::Profile::bf16},
                                         Case{"tiny-k3-26l", ops::Profile::exact}, Case{"tiny-k3-26l", ops::Profile::bf16}),
                         [](const auto& tested) {
                           std::string name = tested.param.model + "_" + std::string(ops::to_string(tested.param.profile));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Boundaries at block - 1, block, block + 1 and 2 * block, and one layer further: ceil(s / block) blocks cross before layer s,
// and s / block + 1 exist after it. Logits are those of one stage, bit for bit.
TEST_P(K3Cases, K4TheSenderSealsAndTheReceiverDoesNotSealAgain) {
  StageChain one = chain({});
  const int64_t block = one.config().residual_block.value();
  const int64_t count = one.config().layer_count;
  const std::vector<int32_t> ids = some_ids(7, one.config().vocab_size);
  StageChain::Sequence sequence = one.create();
  std::vector<float> wanted = one.feed(sequence, ids);
  const std::vector<float> decoded = one.feed(sequence, {5});
  for (const int64_t s : {block - 1, block, block + 1, 2 * block}) {
    if (s >= count) continue;
    SCOPED_TRACE(fmt::format("layer {}", s));
    std::vector<int64_t> cuts = {s};
    if (s + 1 < count) cuts.push_back(s + 1);
    StageChain split = chain(cuts);
    StageChain::Sequence parts = split.create();
    EXPECT_TRUE(same_bits(split.feed(parts, ids), wanted));
    ASSERT_EQ(split.crossings().size(), cuts.size());
    for (size_t i = 0; i < cuts.size(); ++i) {
      const Crossing& crossing = split.crossings()[i];
      const int64_t blocks = (cuts[i] + block - 1) / block;
      EXPECT_EQ(std::ssize(crossing.sent.blocks), blocks);
      EXPECT_EQ(std::ssize(crossing.received.blocks), blocks);
      EXPECT_EQ(crossing.sent.sealed, cuts[i] % block == 0);
      EXPECT_EQ(crossing.received.sealed, cuts[i] % block == 0);
      EXPECT_EQ(crossing.packed.shape(), Shape({7, (blocks + 1) * one.config().hidden_size}));
      EXPECT_EQ(crossing.packed.dtype(), activation_dtype(GetParam().profile));
    }
    if (cuts.size() == 2) {
      // After layer s there are s / block + 1 blocks; a plane that crossed sealed is the last of them, once.
      const Crossing& before = split.crossings()[0];
      const Crossing& after = split.crossings()[1];
      EXPECT_EQ(std::ssize(after.sent.blocks), s / block + 1);
      for (size_t b = 0; b < before.received.blocks.size(); ++b) {
        EXPECT_TRUE(same_bits(after.received.blocks[b]->as<float>(), before.received.blocks[b]->as<float>())) << b;
      }
      if (s % block == 0) {
        EXPECT_TRUE(same_bits(after.received.blocks.back()->as<float>(), before.received.hidden->as<float>()));
      }
    }
    EXPECT_TRUE(same_bits(split.feed(parts, {5}), decoded)) << "decode";
  }
}

// The blocks that a stage did not seal are handed on as they came: the same memory, no copy.
TEST_P(K3Cases, K5AStageThatSealsNothingForwardsTheBlocksUnchanged) {
  const std::shared_ptr<const ModelConfig> config = load_model_config(dir());
  const int64_t block = config->residual_block.value();
  // Inside a block, and up to its end: neither holds a layer that starts one.
  for (const LayerRange range : {layers(1, block), layers(block + 1, std::min(2 * block, config->layer_count - 1))}) {
    if (range.size() < 1) continue;
    SCOPED_TRACE(fmt::format("layers [{}, {})", range.begin, range.end));
    StageChain split = chain({range.begin.value, range.end.value});
    StageChain::Sequence parts = split.create();
    const std::vector<int32_t> ids = some_ids(3, config->vocab_size);
    (void)split.feed(parts, ids);
    const Boundary received = split.crossings()[0].received;
    StageChain::Sequence again = split.create();
    Batch alone;
    alone.ids = ids;
    alone.groups.push_back(again[1].extend(0, 3));
    const Stage::Output out = split.stage(1).forward(split.context(), alone, received);
    ASSERT_TRUE(out.boundary);
    EXPECT_EQ(out.boundary->blocks, received.blocks);  // the pointers
    EXPECT_NE(out.boundary->hidden, received.hidden);
    EXPECT_EQ(out.boundary->sealed, range.end.value % block == 0);
  }
}

// No pages, no positions: such a stage keeps nothing that grows, and need not.
TEST_P(K3Cases, K6AStageOfKdaLayersAlone) {
  StageChain one = chain({});
  const ModelConfig& config = one.config();
  // The longest run of layers without MLA that is neither at the model's start nor at its end.
  LayerRange best = layers(0, 0);
  const StateLayout all = config.state_layout(config.all_layers());
  for (int64_t begin = 1; begin < config.layer_count; ++begin) {
    int64_t end = begin;
    while (end + 1 < config.layer_count && all.at(LayerIndex(end)).page.empty()) ++end;
    if (end - begin > best.size()) best = layers(begin, end);
  }
  ASSERT_GE(best.size(), 1);
  StageChain split = chain({best.begin.value, best.end.value});
  EXPECT_EQ(split.stage(1).states().layout().page_floats(), 0);
  StageChain::Sequence whole = one.create();
  StageChain::Sequence parts = split.create();
  for (const std::vector<int32_t>& ids : {some_ids(70, config.vocab_size), {1}, some_ids(3, config.vocab_size), {2}})
    EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
  EXPECT_EQ(split.stage(1).states().pages_held(), 0);
  EXPECT_EQ(split.stage(1).states().slots_held(), 1);
  EXPECT_EQ(parts[1].consumed(), TokenCount(75));
}

TEST_P(K3Cases, K7PromptsOfAllLengthsThroughTheSamePacking) {
  StageChain one = chain({});
  const int64_t block = one.config().residual_block.value();
  StageChain two = chain({block});
  StageChain three = chain({block - 1, block + 1});
  for (const int64_t length : {1, 11, 12, 13, 25}) {
    const std::vector<int32_t> prompt = some_ids(length, one.config().vocab_size, length);
    const std::vector<int32_t> wanted = one.greedy(prompt, 4);
    EXPECT_EQ(two.greedy(prompt, 4), wanted) << length;
    EXPECT_EQ(two.crossings()[0].packed.shape()[0], 1);  // the last step was of one token
    EXPECT_EQ(three.greedy(prompt, 4), wanted) << length;
  }
}

// What a stage receives at every layer of the model is a bf16 value in profile bf16: pack_boundary rounds nothing.
TEST_P(K3Cases, EveryBoundaryCrossesWithoutLoss) {
  StageChain one = chain({});
  std::vector<int64_t> cuts;
  for (int64_t cut = 1; cut < one.config().layer_count; ++cut) cuts.push_back(cut);
  StageChain split = chain(cuts);
  StageChain::Sequence whole = one.create();
  StageChain::Sequence parts = split.create();
  for (const std::vector<int32_t>& ids : {some_ids(9, one.config().vocab_size), {3}, {4}})
    EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
  for (const Crossing& crossing : split.crossings()) {
    EXPECT_TRUE(same_bits(crossing.received.hidden->as<float>(), crossing.sent.hidden->as<float>()));
    for (size_t b = 0; b < crossing.sent.blocks.size(); ++b)
      EXPECT_TRUE(same_bits(crossing.received.blocks[b]->as<float>(), crossing.sent.blocks[b]->as<float>()));
  }
}

// The first block is the embedding. A table of float32 is rounded when it is read, or it could not cross.
TEST(K3Cases, AnEmbeddingOfFloat32CrossesAsBf16) {
  const TemporaryFolder folder;
  Resharding how;
  how.change = [](TensorSpec& spec, std::vector<std::byte>& bytes) {
    if (!spec.name.ends_with("embed_tokens.weight")) return;
    std::vector<std::byte> wide(2 * bytes.size());
    for (size_t i = 0; i < bytes.size() / 2; ++i) {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      const float value = 1.01F * bf16_to_f32(half);
      std::memcpy(wide.data() + 4 * i, &value, 4);
    }
    spec.dtype = DType::f32;
    bytes = std::move(wide);
  };
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model", how);
  for (const ops::Profile profile : {ops::Profile::exact, ops::Profile::bf16}) {
    StageChain one(folder.path() / "model", {}, profile);
    StageChain split(folder.path() / "model", {1, 5}, profile);
    StageChain::Sequence whole = one.create();
    StageChain::Sequence parts = split.create();
    const std::vector<int32_t> ids = some_ids(6, 512);
    EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
  }
}

TEST(K3Cases, K8WrongWidthIsRefused) {
  StageChain split(fixture("tiny-k3-8l"), {5}, ops::Profile::bf16);
  StageChain::Sequence parts = split.create();
  const std::vector<int32_t> ids = some_ids(3, 512);
  (void)split.feed(parts, ids);
  const Crossing& good = split.crossings()[0];
  const BoundaryForm form = boundary_form(split.config(), LayerIndex(5), DType::bf16);
  EXPECT_EQ(form, (BoundaryForm{LayerIndex(5), 2, false, 96, DType::bf16}));
  const auto received = [&](const Tensor& packed, int64_t rows = 3) {
    return message([&] { (void)unpack_boundary(packed.view(), false, form, rows); });
  };
  EXPECT_EQ(received(good.packed), "no error");
  EXPECT_THAT(received(Tensor::zeros(DType::bf16, {3, 192})),
              HasSubstr("before layer 5: wanted BF16 [rows, (K + 1) * 96] = [3, 288] with K = 2 blocks, found BF16 [3, 192]"));
  EXPECT_THAT(received(Tensor::zeros(DType::bf16, {3, 384})), HasSubstr("= [3, 288] with K = 2 blocks, found BF16 [3, 384]"));
  EXPECT_THAT(received(Tensor::zeros(DType::f32, {3, 288})), HasSubstr("found F32 [3, 288]"));
  EXPECT_THAT(received(good.packed, 4), HasSubstr("= [4, 288]"));
  // Past the wire, the stage itself looks again: rows, planes, layer, seal.
  const auto forwarded = [&](const std::function<void(Boundary&)>& change) {
    Boundary boundary = good.received;
    change(boundary);
    StageChain::Sequence again = split.create();
    Batch batch;
    batch.ids = ids;
    batch.groups.push_back(again[1].extend(0, 3));
    return message([&] { (void)split.stage(1).forward(split.context(), batch, boundary); });
  };
  EXPECT_EQ(forwarded([](Boundary&) {}), "no error");
  EXPECT_THAT(forwarded([](Boundary& b) { b.blocks.pop_back(); }),
              HasSubstr("wanted 2 blocks of [3, 96] and sealed = false, found 1"));
  EXPECT_THAT(forwarded([](Boundary& b) { b.blocks.push_back(b.hidden); }), HasSubstr("found 3 blocks"));
  EXPECT_THAT(forwarded([](Boundary& b) { b.hidden = std::make_shared<const Tensor>(Tensor::zeros(DType::f32, {3, 95})); }),
              HasSubstr("hidden [3, 95]"));
  EXPECT_THAT(forwarded([](Boundary& b) { b.blocks[1] = std::make_shared<const Tensor>(Tensor::zeros(DType::f32, {2, 96})); }),
              HasSubstr("wanted 2 blocks of [3, 96]"));
  EXPECT_THAT(forwarded([](Boundary& b) { b.sealed = true; }), HasSubstr("sealed = true"));
  EXPECT_THAT(forwarded([](Boundary& b) { b.layer = LayerIndex(4); }), HasSubstr("for layer 4"));
}

TEST(K3Cases, K9AStateOfOtherLayersIsRefused) {
  StageChain split(fixture("tiny-k3-8l"), {3, 5}, ops::Profile::exact);
  StageChain::Sequence parts = split.create();
  const std::vector<int32_t> ids = some_ids(3, 512);
  (void)split.feed(parts, ids);
  // A saved state: that of the first stage's three layers, and that with one of the second's two.
  SequenceState::Tensors saved = parts[0].export_tensors();
  const auto import = [&](size_t stage) {
    std::map<std::string, TensorView> views;
    for (const auto& [name, tensor] : saved) views.emplace(name, tensor.view());
    return message([&] { (void)SequenceState::import_tensors(split.stage(stage).states(), TokenCount(3), views); });
  };
  EXPECT_EQ(import(0), "no error");
  EXPECT_THAT(import(1), HasSubstr("wanted the state of the 2 layers [3, 5), found that of 0 of them"));
  for (auto& [name, tensor] : parts[1].export_tensors())
    if (name.starts_with("layers.3.")) saved.emplace(name, tensor);
  EXPECT_THAT(import(1), HasSubstr("wanted the state of the 2 layers [3, 5), found that of 1 of them"));
  EXPECT_EQ(split.stage(1).states().slots_held(), 1);  // the sequence's own
  // A live one.
  Batch batch;
  batch.ids = ids;
  batch.groups.push_back(parts[0].extend(0, 3));
  EXPECT_THAT(message([&] { (void)split.stage(1).forward(split.context(), batch, split.crossings()[0].received); }),
              HasSubstr("wanted states of this stage's 2 layers [3, 5), found one of 3 layers [0, 3)"));
}

TEST(K3Cases, K10TheLastStageWantsTheOutputMix) {
  for (const std::string part : {"output_attn_res_norm", "output_attn_res_proj"}) {
    const TemporaryFolder folder;
    Resharding how;
    how.name_of = [&](const std::string& name) { return name.find(part) == std::string::npos ? name : std::string(); };
    write_sharded(fixture("tiny-k3-8l"), folder.path() / "model", how);
    const auto load = [&](LayerRange range) {
      return message([&] {
        StageOptions options;
        options.layers = range;
        options.fingerprint = "none";
        (void)make_stage(std::make_shared<const Checkpoint>(folder.path() / "model", CheckpointOptions{.layers = range}),
                         options);
      });
    };
    EXPECT_THAT(load(layers(4, 8)), HasSubstr("tensor 'language_model.model." + part + ".weight': missing in the index"));
    EXPECT_EQ(load(layers(0, 4)), "no error");
    EXPECT_EQ(load(layers(4, 7)), "no error");
  }
}

// The audit of each stage against the plan that it was given: the same files, and of those the headers and the plan's bytes.
TEST(K3Cases, K12EachStageOpensOnlyTheShardsOfItsLayers) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model");
  const auto dir = folder.path() / "model";
  const Checkpoint whole(dir);
  for (const std::string split : {"0-3,4-7", "0-2,3-3,4-7", "0-0,1-6,7-7"}) {
    PlanOptions options;
    options.layers = split;
    const Plan plan = make_plan(plan_model(whole), options);
    for (const PlanStage& planned : plan.stages) {
      SCOPED_TRACE(fmt::format("{}: layers [{}, {})", split, planned.layers.begin, planned.layers.end));
      const auto part = folder.path() / fmt::format("{} {}", split, planned.layers.begin);
      copy_part(dir, part, {planned.shards.begin(), planned.shards.end()});
      const auto checkpoint = std::make_shared<const Checkpoint>(part, CheckpointOptions{.layers = planned.layers});
      StageOptions stage_options;
      stage_options.layers = planned.layers;
      stage_options.fingerprint = "none";
      const std::unique_ptr<Stage> stage = make_stage(checkpoint, stage_options);
      for (LayerIndex layer = planned.layers.begin; layer < planned.layers.end; ++layer)
        for (int64_t e = 0; whole.config().is_moe(layer) && e < whole.config().experts; ++e)
          checkpoint->check_expert_scales(layer, e);  // what a stage does when an expert is first named
      int64_t bytes = planned.weights;
      std::vector<std::string> files;
      for (const FileReads& file : checkpoint->reads()) files.push_back(file.file);
      EXPECT_EQ(files, planned.shards);
      for (const InventoryFile& file : checkpoint->inventory().files()) bytes += file.header_size;
      EXPECT_EQ(checkpoint->bytes_read().value, bytes);
    }
  }
}

TEST_P(K3Cases, K14TwoInterleavedSequencesKeepTheirStates) {
  StageChain one = chain({});
  const int64_t vocabulary = one.config().vocab_size;
  const int64_t half = one.config().layer_count / 2;
  StageChain split = chain({half});
  const std::vector<int32_t> first = some_ids(5, vocabulary, 1);
  const std::vector<int32_t> second = some_ids(8, vocabulary, 2);
  const auto alone = [&](const std::vector<int32_t>& prompt) {
    StageChain::Sequence sequence = one.create();
    std::vector<std::vector<float>> logits = {one.feed(sequence, prompt)};
    for (const int32_t id : {7, 8, 9}) logits.push_back(one.feed(sequence, {id}));
    return logits;
  };
  const std::vector<std::vector<float>> wanted_first = alone(first);
  const std::vector<std::vector<float>> wanted_second = alone(second);
  {
    StageChain::Sequence a = split.create();
    StageChain::Sequence b = split.create();
    EXPECT_TRUE(same_bits(split.feed(a, first), wanted_first[0]));
    EXPECT_TRUE(same_bits(split.feed(b, second), wanted_second[0]));
    EXPECT_TRUE(same_bits(split.feed(a, {7}), wanted_first[1]));
    // Both in one step, then the other first.
    const auto both = [&](int32_t id, bool a_first) {
      const std::vector<StageChain::Rows> rows = {{a_first ? &a : &b, {id}}, {a_first ? &b : &a, {id}}};
      return split.run(rows);
    };
    EXPECT_TRUE(same_bits(split.feed(b, {7}), wanted_second[1]));
    std::vector<float> together = wanted_first[2];
    together.insert(together.end(), wanted_second[2].begin(), wanted_second[2].end());
    EXPECT_TRUE(same_bits(both(8, true), together));
    together = wanted_second[3];
    together.insert(together.end(), wanted_first[3].begin(), wanted_first[3].end());
    EXPECT_TRUE(same_bits(both(9, false), together));
    for (size_t i = 0; i < split.size(); ++i) EXPECT_EQ(split.stage(i).states().slots_held(), 2);
    EXPECT_GT(split.stage(1).states().pages_held(), 0);
    b.clear();
    for (size_t i = 0; i < split.size(); ++i) EXPECT_EQ(split.stage(i).states().slots_held(), 1);
  }
  for (size_t i = 0; i < split.size(); ++i) {
    EXPECT_EQ(split.stage(i).states().slots_held(), 0);
    EXPECT_EQ(split.stage(i).states().pages_held(), 0);
  }
}

// Layers of each kind have a price of their own, which is the sum of what the headers say.
TEST(K3Cases, K15PricesAreSumsOfTheHeaders) {
  const Checkpoint checkpoint(fixture("tiny-k3-8l"));
  const PlanModel model = plan_model(checkpoint);
  std::map<int64_t, int64_t> sums;
  int64_t embedding = 0;
  int64_t head = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixture("tiny-k3-8l"))) {
    if (!entry.path().filename().string().starts_with("model-")) continue;
    const SafetensorsFile file(entry.path());
    for (const TensorEntry& tensor : file.entries()) {
      const size_t at = tensor.name.find(".layers.");
      if (tensor.name.starts_with("vision") || tensor.name.starts_with("mm_projector")) continue;
      if (at != std::string::npos) {
        sums[std::stoll(tensor.name.substr(at + 8))] += tensor.bytes();
      } else {
        (tensor.name.find("embed_tokens") != std::string::npos ? embedding : head) += tensor.bytes();
      }
    }
  }
  ASSERT_EQ(model.layer_count(), 8);
  std::map<std::string, std::set<int64_t>> prices;
  for (int64_t l = 0; l < 8; ++l) {
    const PlanModel::Layer& layer = model.layers[static_cast<size_t>(l)];
    EXPECT_EQ(layer.weights, sums[l]) << l;
    prices[layer.kind].insert(layer.weights);
    const bool mla = layer.kind.starts_with("MLA");
    EXPECT_EQ(layer.state_f32 == 0, mla) << l;
    EXPECT_EQ(layer.token_values == 0, !mla) << l;
    EXPECT_EQ(layer.experts == 0, layer.kind.ends_with("dense")) << l;
  }
  EXPECT_EQ(model.embedding, embedding);
  EXPECT_EQ(model.head, head);
  ASSERT_EQ(prices.size(), 3U);  // KDA dense, KDA MoE, MLA MoE
  std::set<int64_t> different;
  for (const auto& [kind, weights] : prices) {
    EXPECT_EQ(weights.size(), 1U) << kind;
    different.insert(*weights.begin());
  }
  EXPECT_EQ(different.size(), 3U);
}

}  // namespace
}  // namespace weft
