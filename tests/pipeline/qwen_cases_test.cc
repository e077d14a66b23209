// Qwen3-Next over stages: acceptance cases Q1 to Q7, Q9 and Q10 of distributed.md 11.2.
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/guard.h"
#include "model/state_file.h"
#include "model/synth.h"
#include "tensor/bf16.h"

#include "support/models.h"
#include "support/sharded.h"
#include "support/small_synth.h"
#include "support/stage_chain.h"

namespace weft {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr ops::Profile kProfiles[] = {ops::Profile::exact, ops::Profile::bf16};
constexpr int64_t kVocab = 512;

LayerRange layers(int64_t begin, int64_t end) { return {LayerIndex(begin), LayerIndex(end)}; }
std::string message(const std::function<void()>& body) {
  const auto failure = guard(body);
  return failure ? failure->message : "no error";
}

TEST(QwenCases, Q1TheModelTypeNamesTheFamily) {
  const Json config = read_json_file(fixture("tiny-qwen3-next-8l") / "config.json");
  EXPECT_EQ(config.at("model_type").get<std::string>(), "qwen3_next");
  EXPECT_EQ(parse_model_config(config, "config.json")->model_type, "qwen3_next");
  EXPECT_THAT(kSupportedModels, HasSubstr("\"qwen3_next\""));
  Json other = config;
  other["model_type"] = "qwen3_text";
  EXPECT_THAT(message([&] { (void)parse_model_config(other, "config.json"); }), HasSubstr("\"qwen3_next\""));
}

// The shards of other layers are not there.
TEST(QwenCases, Q2AStageLoadsItsLayersAlone) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-qwen3-next-8l"), folder.path() / "model");
  for (const LayerRange range : {layers(0, 3), layers(3, 4), layers(4, 8)}) {
    const Checkpoint probe(folder.path() / "model", {.layers = range});
    std::set<std::string> shards;
    for (const InventoryFile& file : probe.inventory().files()) shards.insert(file.name);
    EXPECT_EQ(std::ssize(shards), range.size() + (range.begin.value == 0 ? 1 : 0) + (range.end.value == 8 ? 1 : 0));
    const fs::path part = folder.path() / std::to_string(range.begin.value);
    copy_part(folder.path() / "model", part, shards);
    const auto checkpoint = std::make_shared<const Checkpoint>(part, CheckpointOptions{.layers = range});
    StageOptions options;
    options.layers = range;
    options.fingerprint = "none";
    const std::unique_ptr<Stage> stage = make_stage(checkpoint, options);
    EXPECT_EQ(stage->layers(), range);
    EXPECT_EQ(stage->states().layout().layers(), range);
    EXPECT_EQ(stage->states().fingerprint(), "none");
  }
}

TEST(QwenCases, Q3IdsGoInAndLogitsComeOut) {
  StageChain split(fixture("tiny-qwen3-next-8l"), {3, 5}, ops::Profile::bf16);
  StageChain::Sequence parts = split.create();
  const std::vector<int32_t> ids = some_ids(4, kVocab);
  EXPECT_EQ(std::ssize(split.feed(parts, ids)), 4 * kVocab);
  for (const Crossing& crossing : split.crossings()) {  // one plane, 2 bytes a value
    EXPECT_EQ(crossing.sent.planes(), 1);
    EXPECT_FALSE(crossing.sent.sealed);
    EXPECT_EQ(crossing.packed.shape(), Shape({4, 64}));
    EXPECT_EQ(crossing.packed.bytes(), 4 * 64 * 2);
  }
  const Boundary first = split.crossings()[0].received;
  const Boundary second = split.crossings()[1].received;
  const auto refused = [&](size_t stage, std::optional<Boundary> in) {
    StageChain::Sequence again = split.create();
    Batch batch;
    batch.ids = ids;
    batch.groups.push_back(again[stage].extend(0, 4));
    return message([&] {
      const Stage::Output out = split.stage(stage).forward(split.context(), batch, std::move(in));
      if (out.boundary.has_value() == split.stage(stage).last()) fail(ErrorKind::internal, "test", "wrong output");
    });
  };
  EXPECT_EQ(refused(0, std::nullopt), "no error");
  EXPECT_EQ(refused(1, first), "no error");
  EXPECT_EQ(refused(2, second), "no error");
  EXPECT_THAT(refused(0, first), HasSubstr("layers [0, 3): wanted no boundary"));
  EXPECT_THAT(refused(1, std::nullopt), HasSubstr("layers [3, 5): wanted a boundary"));
  EXPECT_THAT(refused(2, std::nullopt), HasSubstr("layers [5, 8): wanted a boundary"));
  EXPECT_THAT(refused(2, first), HasSubstr("before layer 5"));
}

// The last stage has the table by its own reading: the first stage's machine is another.
TEST(QwenCases, Q4TheHeadOfTiedEmbeddings) {
  for (const ops::Profile profile : kProfiles) {
    const TemporaryFolder folder;
    write_sharded(fixture("tiny-qwen3-next-tied-mlponly"), folder.path() / "model");
    StageChain one(fixture("tiny-qwen3-next-tied-mlponly"), {}, profile);
    StageChain split(folder.path() / "model", {4}, profile);
    const std::vector<FileReads> reads = split.checkpoint(1).reads();
    const auto table = std::ranges::find(reads, "embed.safetensors", &FileReads::file);
    ASSERT_NE(table, reads.end());
    EXPECT_EQ(table->bytes().value, table->size);
    EXPECT_FALSE(split.checkpoint(1).has("lm_head.weight"));
    StageChain::Sequence whole = one.create();
    StageChain::Sequence parts = split.create();
    for (const std::vector<int32_t>& ids : {some_ids(6, 640), {639}})
      EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
  }
}

TEST(QwenCases, Q5KindsComeFromTheGlobalLayer) {
  const TemporaryFolder folder;
  SynthOptions options = small_qwen(folder.path() / "model");
  options.layers = 12;
  synthesize(options);
  const std::shared_ptr<const ModelConfig> config = load_model_config(folder.path() / "model");
  const StateLayout layout = config->state_layout(layers(5, 9));
  ASSERT_EQ(layout.states().size(), 4U);
  for (size_t local = 0; local < 4; ++local) {
    const LayerState& state = layout.states()[local];
    EXPECT_EQ(state.layer, LayerIndex(5 + static_cast<int64_t>(local)));
    EXPECT_EQ(state.page.empty(), local != 2) << local;
    EXPECT_EQ(state.slot.empty(), local == 2) << local;
  }
  for (const ops::Profile profile : kProfiles) {
    StageChain one(folder.path() / "model", {}, profile);
    StageChain split(folder.path() / "model", {5, 9}, profile);
    StageChain::Sequence whole = one.create();
    StageChain::Sequence parts = split.create();
    for (const std::vector<int32_t>& ids : {some_ids(5, kVocab), {3}})
      EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
  }
}

// Positions are those of the sequence whichever stage asks: layers 4 to 6 keep no keys, layer 7 is the last stage's first
// attention layer. Prefill in chunks and decode.
TEST(QwenCases, Q6TheOffsetIsTheSequencesOwn) {
  for (const ops::Profile profile : kProfiles) {
    StageChain one(fixture("tiny-qwen3-next-8l"), {}, profile);
    StageChain split(fixture("tiny-qwen3-next-8l"), {4, 6}, profile);
    EXPECT_EQ(split.stage(1).states().layout().page_floats(), 0);
    EXPECT_GT(split.stage(2).states().layout().page_floats(), 0);
    StageChain::Sequence whole = one.create();
    StageChain::Sequence parts = split.create();
    int64_t consumed = 0;
    for (const int64_t rows : {5, 1, 64, 1, 7}) {
      const std::vector<int32_t> ids = some_ids(rows, kVocab, rows);
      EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids))) << rows;
      consumed += rows;
      for (const SequenceState& state : parts) EXPECT_EQ(state.consumed(), TokenCount(consumed));
    }
    EXPECT_EQ(split.stage(1).states().pages_held(), 0);
    EXPECT_EQ(split.stage(2).states().pages_held(), 2);  // 78 tokens
  }
}

// Through a file, into another split.
TEST(QwenCases, Q7StatesGoIntoAFileAndBack) {
  const TemporaryFolder folder;
  StageChain one(fixture("tiny-qwen3-next-8l"), {}, ops::Profile::bf16);
  StageChain split(fixture("tiny-qwen3-next-8l"), {3, 5}, ops::Profile::bf16);
  StageChain other(fixture("tiny-qwen3-next-8l"), {4}, ops::Profile::bf16);
  const std::vector<int32_t> ids = some_ids(67, kVocab);
  StageChain::Sequence parts = split.create();
  StageChain::Sequence whole = one.create();
  (void)split.feed(parts, ids);
  (void)one.feed(whole, ids);
  SequenceState::Tensors all;
  for (const SequenceState& state : parts) all.merge(state.export_tensors());
  bool delta = false;
  bool attention = false;
  for (const auto& [name, tensor] : all) {
    delta = delta || name.starts_with("layers.0.");
    attention = attention || (name.starts_with("layers.3.k") && tensor.shape()[0] == 67);
  }
  EXPECT_TRUE(delta && attention);
  write_state_file(folder.path() / "state", {parts[0].fingerprint(), TokenCount(67), 8, ids}, all);
  const StateFile file(folder.path() / "state");
  StageChain::Sequence restored;
  for (size_t i = 0; i < other.size(); ++i) {
    StatePool& pool = other.stage(i).states();
    file.require(pool.fingerprint(), 8);
    restored.push_back(SequenceState::import_tensors(pool, file.header().consumed, file.tensors()));
  }
  for (const int32_t id : {1, 2, 3}) {
    const std::vector<float> wanted = one.feed(whole, {id});
    EXPECT_TRUE(same_bits(other.feed(restored, {id}), wanted));
    EXPECT_TRUE(same_bits(split.feed(parts, {id}), wanted));
  }
}

TEST(QwenCases, Q9SequencesShareNoState) {
  for (const ops::Profile profile : kProfiles) {
    StageChain one(fixture("tiny-qwen3-next-8l"), {}, profile);
    StageChain split(fixture("tiny-qwen3-next-8l"), {2, 5}, profile);
    std::vector<StageChain::Sequence> together;
    std::vector<StageChain::Sequence> alone;
    for (int i = 0; i < 4; ++i) {
      together.push_back(split.create());
      alone.push_back(one.create());
    }
    for (int64_t step = 0; step < 4; ++step) {
      std::vector<StageChain::Rows> rows;
      std::vector<float> wanted;
      for (int64_t i = 0; i < 4; ++i) {
        const auto at = static_cast<size_t>((i + step) % 4);
        const std::vector<int32_t> ids = some_ids(step == 0 ? 3 + i : 1, kVocab, i * 7 + step);
        rows.push_back({&together[at], ids});
        const std::vector<float> some = one.feed(alone[at], ids);
        wanted.insert(wanted.end(), some.begin(), some.end());
      }
      EXPECT_TRUE(same_bits(split.run(rows), wanted)) << step;
    }
  }
}

// A conversion of MLX without quantisation: experts stacked, norms that hold the 1, convolutions [P, Kc, 1].
void write_mlx(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  struct Made {
    DType dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Made> made;
  for (const auto& entry : fs::directory_iterator(from)) {
    if (!entry.path().filename().string().starts_with("model-") || entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const TensorEntry& tensor : file.entries()) {
      const std::span<const std::byte> bytes = file.bytes(tensor);
      constexpr std::string_view kExperts = ".experts.";
      const size_t at = tensor.name.find(kExperts);
      if (at != std::string::npos) {
        const std::string rest = tensor.name.substr(at + kExperts.size());  // "3.up_proj.weight"
        const auto expert = static_cast<size_t>(std::stoi(rest));
        Made& all = made[tensor.name.substr(0, at) + ".switch_mlp" + rest.substr(rest.find('.'))];
        all.dtype = tensor.dtype;
        all.shape = {8, tensor.shape[0], tensor.shape[1]};
        all.bytes.resize(8 * bytes.size());
        std::ranges::copy(bytes, all.bytes.begin() + static_cast<int64_t>(expert * bytes.size()));
      } else if (tensor.name.ends_with("norm.weight") && !tensor.name.ends_with("linear_attn.norm.weight")) {
        Made& norm = made[tensor.name];
        norm = {DType::f32, tensor.shape, std::vector<std::byte>(bytes.size() * 2)};
        for (size_t i = 0; i < bytes.size() / 2; ++i) {
          uint16_t half = 0;
          std::memcpy(&half, bytes.data() + 2 * i, 2);
          const float value = 1.0F + bf16_to_f32(half);
          std::memcpy(norm.bytes.data() + 4 * i, &value, 4);
        }
      } else {
        Shape shape = tensor.shape;
        if (tensor.name.ends_with("conv1d.weight")) shape = {shape[0], shape[2], 1};
        made[tensor.name] = {tensor.dtype, shape, {bytes.begin(), bytes.end()}};
      }
    }
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : made) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(to / "model.safetensors", specs);
  for (const auto& [name, tensor] : made) writer.append(name, tensor.bytes);
  writer.finish();
}

// Of a conversion and of the published files, every stage decides as the whole does. Layers 0 and 3 have no experts, layer 3 no
// convolution either: nothing that they hold tells. The shards of other layers are not there.
TEST(QwenCases, Q10TheConversionIsToldByTheWholeIndex) {
  const TemporaryFolder folder;
  SynthOptions options = small_qwen(folder.path() / "plain");
  options.set.emplace_back("mlp_only_layers=[0,3]");
  options.set.emplace_back("intermediate_size=64");
  synthesize(options);
  write_mlx(folder.path() / "plain", folder.path() / "converted");
  write_sharded(folder.path() / "converted", folder.path() / "mlx");
  write_sharded(folder.path() / "plain", folder.path() / "published");
  const std::vector<int32_t> ids = some_ids(9, kVocab);
  StageChain one(folder.path() / "plain", {}, ops::Profile::exact);
  StageChain::Sequence whole = one.create();
  const std::vector<float> wanted = one.feed(whole, ids);
  for (const bool mlx : {true, false}) {
    SCOPED_TRACE(mlx);
    const fs::path dir = folder.path() / (mlx ? "mlx" : "published");
    EXPECT_EQ(Checkpoint(dir).norms_hold_the_one(), mlx);
    for (const LayerRange range : {layers(0, 1), layers(1, 3), layers(3, 4), layers(4, 5)}) {
      const Checkpoint probe(dir, {.layers = range});
      std::set<std::string> shards;
      for (const InventoryFile& file : probe.inventory().files()) shards.insert(file.name);
      const fs::path part = folder.path() / fmt::format("{} {}", mlx, range.begin);
      copy_part(dir, part, shards);
      EXPECT_EQ(Checkpoint(part, {.layers = range}).norms_hold_the_one(), mlx) << range.begin.value;
    }
    StageChain split(dir, {1, 3, 4}, ops::Profile::exact);
    StageChain::Sequence parts = split.create();
    EXPECT_TRUE(same_bits(split.feed(parts, ids), wanted));
  }
}

// Without experts and quantisation no name tells a conversion: its convolutions do, and a stage that has none is refused rather
// than guessed for.
TEST(QwenCases, Q10AStageThatCannotTellIsRefused) {
  const TemporaryFolder folder;
  SynthOptions options = small_qwen(folder.path() / "dense");
  options.set.emplace_back("mlp_only_layers=[0,1,2,3,4]");
  options.set.emplace_back("intermediate_size=64");
  synthesize(options);
  write_sharded(folder.path() / "dense", folder.path() / "published");
  Resharding how;
  how.change = [](TensorSpec& spec, std::vector<std::byte>&) {
    if (spec.name.ends_with("conv1d.weight")) spec.shape = {spec.shape[0], spec.shape[2], 1};
  };
  write_sharded(folder.path() / "dense", folder.path() / "mlx", how);
  for (const bool mlx : {true, false}) {
    const fs::path dir = folder.path() / (mlx ? "mlx" : "published");
    EXPECT_EQ(Checkpoint(dir).norms_hold_the_one(), mlx);
    for (const LayerRange range : {layers(0, 2), layers(2, 4), layers(3, 5)})
      EXPECT_EQ(Checkpoint(dir, {.layers = range}).norms_hold_the_one(), mlx);
    EXPECT_THAT(message([&] { const Checkpoint alone(dir, {.layers = layers(3, 4)}); }),
                HasSubstr("layers 3 to 4: no name in the index tells the published files from a conversion of MLX"));
  }
}

// Kimi Linear and Qwen3-Next leave bf16 values at every boundary in profile bf16.
TEST(PlainResiduals, EveryBoundaryCrossesWithoutLoss) {
  for (const char* model : {"tiny-qwen3-next-8l", "tiny-qwen3-next-tied-mlponly", "tiny-kimi-linear"}) {
    for (const ops::Profile profile : kProfiles) {
      SCOPED_TRACE(model);
      StageChain one(fixture(model), {}, profile);
      std::vector<int64_t> cuts;
      for (int64_t cut = 1; cut < one.config().layer_count; ++cut) cuts.push_back(cut);
      StageChain split(fixture(model), cuts, profile);
      StageChain::Sequence whole = one.create();
      StageChain::Sequence parts = split.create();
      for (const std::vector<int32_t>& ids : {some_ids(9, kVocab), {3}, {4}})
        EXPECT_TRUE(same_bits(split.feed(parts, ids), one.feed(whole, ids)));
      for (const Crossing& crossing : split.crossings()) {
        EXPECT_EQ(crossing.packed.dtype(), activation_dtype(profile));
        EXPECT_TRUE(same_bits(crossing.received.hidden->as<float>(), crossing.sent.hidden->as<float>()));
      }
    }
  }
}

}  // namespace
}  // namespace weft
