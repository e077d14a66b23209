// Random checkpoints, truncated copies and inspection. The oracle of the layout is the reader of other programs' checkpoints
// and the published inventory (K3 spec 2 and 4.2); the complete published layout is a slow test of tests/pipeline.
#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "formats/safetensors.h"
#include "model/checkpoint.h"
#include "model/families/kimi_config.h"
#include "model/inspect.h"
#include "model/truncate.h"

#include "support/golden_model.h"
#include "support/models.h"
#include "support/small_synth.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing_support::fixture;
using testing_support::small_synth;
using testing_support::TemporaryFolder;

std::string refusal(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
}

TEST(Synth, PresetIsThePublishedConfiguration) {
  const Json published = read_json_file(WEFT_SOURCE_DIR "/tests/fixtures/kimi-k3-config.json");
  EXPECT_EQ(nlohmann::json(synth_config({})), nlohmann::json(published));
}

TEST(Synth, SmallModelLoads) {
  const TemporaryFolder dir;
  const SynthOptions options = small_synth(dir.path() / "model");
  int64_t last = 0;
  const SynthReport report = synthesize(options, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
  });
  EXPECT_EQ(last, report.data_bytes);
  const Checkpoint checkpoint(options.out);
  checkpoint.require(checkpoint.all_layers());
  checkpoint.check_small_tensors(checkpoint.all_layers());
  EXPECT_TRUE(checkpoint.notes().empty());
  const auto& config = dynamic_cast<const KimiConfig&>(checkpoint.config());
  EXPECT_EQ(config.layer_count, 5);
  EXPECT_EQ(config.is_kda, (std::vector<bool>{true, true, true, false, false}));  // the last is MLA, as in the release
  EXPECT_EQ(config.eos_ids, std::vector<int64_t>{512 - 254});                     // as far from the end as published
  EXPECT_EQ(checkpoint.inventory().files().size(), 6U);
  EXPECT_EQ(report.shards, 6);
  EXPECT_EQ(report.file_bytes, checkpoint.inventory().file_bytes());
  EXPECT_EQ(report.data_bytes, checkpoint.inventory().data_bytes());
  // File l+1 holds layer l.
  EXPECT_EQ(checkpoint.shards_of({LayerIndex(2), LayerIndex(3)}), std::vector<int64_t>{2});

  const std::optional<TensorId> stored = checkpoint.inventory().find("language_model.model.layers.1.self_attn.A_log");
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(checkpoint.inventory().shape(*stored), (Shape{32}));  // two heads and a zero tail up to the head size
  const Tensor a_log = checkpoint.prefix_f32("model.layers.1.self_attn.A_log");
  for (const float value : a_log.as<float>()) {
    EXPECT_GE(value, 0.0F);
    EXPECT_LE(value, std::log(16.0F));
  }
  const ops::WeightView q = checkpoint.weight("model.layers.0.self_attn.q_proj.weight");
  double squares = 0.0;
  for (int64_t i = 0; i < q.out * q.in; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, q.data + 2 * i, 2);
    squares += static_cast<double>(bf16_to_f32(bits)) * static_cast<double>(bf16_to_f32(bits));
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(q.out * q.in)), 1.0 / 8.0, 0.005);  // 1/sqrt(64)
  for (int64_t e = 0; e < 8; ++e) checkpoint.check_expert_scales(LayerIndex(1), e);
  EXPECT_EQ(read_json_file(options.out / "generation_config.json").at("eos_token_id"), 512 - 254);
}

// Qwen3-Next: norms are zero-centred but for the gated one; a model that computes.
TEST(Synth, Qwen3Next) {
  const TemporaryFolder dir;
  SynthOptions options = testing_support::small_qwen(dir.path() / "qwen");
  (void)synthesize(options);
  const Checkpoint checkpoint(options.out);
  checkpoint.require(checkpoint.all_layers());
  checkpoint.check_small_tensors(checkpoint.all_layers());
  EXPECT_TRUE(checkpoint.notes().empty());
  EXPECT_EQ(checkpoint.config().kind(LayerIndex(3)), "GQA MoE");
  EXPECT_EQ(checkpoint.config().eos_ids, std::vector<int64_t>{512 - (151936 - 151645)});
  const Tensor norm = checkpoint.vector_f32("model.layers.0.input_layernorm.weight");
  for (const float value : norm.as<float>()) EXPECT_LT(value, 0.5F);
  const Tensor gated = checkpoint.vector_f32("model.layers.0.linear_attn.norm.weight");
  for (const float value : gated.as<float>()) EXPECT_EQ(value, 1.0F);
  const Tensor a_log = checkpoint.vector_f32("model.layers.0.linear_attn.A_log");
  for (const float value : a_log.as<float>()) {
    EXPECT_GE(value, 0.0F);
    EXPECT_LE(value, std::log(16.0F) + 0.02F);  // stored in bf16
  }
  options.preset = "qwen4";
  options.out = dir.path() / "other";
  EXPECT_THAT(refusal([&] { (void)synthesize(options); }, ErrorKind::bad_input),
              HasSubstr("wanted k3 or qwen3-next, found 'qwen4'"));
}

TEST(Synth, SeedDecidesEveryByte) {
  const TemporaryFolder dir;
  const auto bytes = [&](const std::string& name, uint64_t seed) {
    SynthOptions options = small_synth(dir.path() / name);
    options.seed = seed;
    (void)synthesize(options);
    return read_text_file(options.out / "model-00002-of-000006.safetensors");
  };
  const std::string first = bytes("a", 1);
  EXPECT_EQ(first, bytes("b", 1));
  EXPECT_NE(first, bytes("c", 2));
}

TEST(Synth, SparseHasTheSameSizes) {
  const TemporaryFolder dir;
  SynthOptions options = small_synth(dir.path() / "full");
  const SynthReport full = synthesize(options);
  options.out = dir.path() / "sparse";
  options.sparse = true;
  const SynthReport sparse = synthesize(options);
  EXPECT_EQ(full.file_bytes, sparse.file_bytes);
  EXPECT_EQ(full.tensors, sparse.tensors);
  const Checkpoint checkpoint(options.out);
  checkpoint.require(checkpoint.all_layers());
  EXPECT_EQ(read_text_file(dir.path() / "full/model.safetensors.index.json"),
            read_text_file(options.out / "model.safetensors.index.json"));
}

TEST(Synth, Refusals) {
  const TemporaryFolder dir;
  const auto with = [&](const std::function<void(SynthOptions&)>& change) {
    SynthOptions options = small_synth(dir.path() / "model");
    change(options);
    return refusal([&] { (void)synthesize(options); }, ErrorKind::bad_input);
  };
  EXPECT_THAT(with([](SynthOptions& o) { o.preset = "k4"; }), HasSubstr("k4"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("hiden_size=3"); }), HasSubstr("hiden_size"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("nothing.head_dim=3"); }), HasSubstr("nothing.head_dim"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("hidden_size"); }), HasSubstr("key=value"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("hidden_act=relu2"); }), HasSubstr("relu2"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("num_hidden_layers=3"); }), HasSubstr("--layers"));
  EXPECT_THAT(with([](SynthOptions& o) { o.set.emplace_back("moe_intermediate_size=40"); }), HasSubstr("multiple of 32"));
  EXPECT_THAT(with([](SynthOptions& o) { o.layers = 0; }), HasSubstr("num_hidden_layers"));
  std::ofstream(dir.path() / "file") << "x";
  EXPECT_THAT(with([&](SynthOptions& o) { o.out = dir.path(); }), HasSubstr("empty folder"));
}

TEST(Truncate, CopiesLoad) {
  const TemporaryFolder dir;
  golden::write(dir.path() / "model");
  std::ofstream(dir.path() / "model/tokenizer_config.json") << "{}";
  TruncateOptions options{.model = dir.path() / "model", .out = dir.path() / "three", .layers = 3};
  const TruncateReport report = truncate_checkpoint(options);
  EXPECT_EQ(report.linked_files, 1);   // layers 0 and 1
  EXPECT_EQ(report.written_files, 1);  // layers 2 to 4 and the ends
  EXPECT_THAT(report.copied, ::testing::ElementsAre("tokenizer_config.json"));
  EXPECT_TRUE(report.notes.empty());
  const Checkpoint whole(options.model);
  const Checkpoint copy(options.out);
  EXPECT_EQ(copy.config().layer_count, 3);
  EXPECT_EQ(copy.config().listed_layers, 3);
  EXPECT_EQ(copy.config_json()["text_config"]["linear_attn_config"]["kda_layers"], Json({1, 2}));
  EXPECT_EQ(report.tensors, copy.inventory().size());
  for (TensorId id = 0; id < copy.inventory().size(); ++id) {
    const std::optional<TensorId> original = whole.inventory().find(copy.inventory().name(id));
    ASSERT_TRUE(original.has_value());
    EXPECT_TRUE(std::ranges::equal(copy.bytes_of(id), whole.bytes_of(*original))) << copy.inventory().name(id);
  }
  EXPECT_TRUE(copy.has("model.layers.2.self_attn.kv_b_proj.weight"));

  // Ruling R3: only num_hidden_layers.
  options.out = dir.path() / "r3";
  options.filter_lists = false;
  const TruncateReport r3 = truncate_checkpoint(options);
  ASSERT_EQ(r3.notes.size(), 1U);
  EXPECT_THAT(r3.notes[0], HasSubstr("num_hidden_layers is 3"));
}

TEST(Truncate, FixturesOfOtherPrograms) {
  const TemporaryFolder dir;
  for (const char* name : {"tiny-k3-8l", "tiny-kimi-linear", "tiny-kimi-linear-hf", "tiny-qwen3-next-8l"}) {
    SCOPED_TRACE(name);
    const TruncateReport report = truncate_checkpoint({.model = fixture(name), .out = dir.path() / name, .layers = 4});
    const Checkpoint copy(dir.path() / name);
    EXPECT_EQ(copy.config().layer_count, 4);
    EXPECT_EQ(report.tensors, copy.inventory().size());
    EXPECT_FALSE(fs::exists(dir.path() / name / "goldens.safetensors"));
  }
  const Json hf = read_json_file(dir.path() / "tiny-kimi-linear-hf/config.json");
  EXPECT_EQ(hf.at("layer_types").size(), 4U);
  const Json qwen = read_json_file(dir.path() / "tiny-qwen3-next-8l/config.json");
  EXPECT_EQ(qwen.at("layer_types").size(), 4U);
}

TEST(Truncate, Refusals) {
  const TemporaryFolder dir;
  golden::write(dir.path() / "model");
  for (const int64_t layers : {-1, 0, 6})
    EXPECT_THAT(
        refusal(
            [&] { (void)truncate_checkpoint({.model = dir.path() / "model", .out = dir.path() / "out", .layers = layers}); },
            ErrorKind::bad_input),
        HasSubstr("wanted 1 to 5"));
  EXPECT_THAT(
      refusal([&] { (void)truncate_checkpoint({.model = dir.path() / "model", .out = dir.path() / "model", .layers = 2}); },
              ErrorKind::bad_input),
      HasSubstr("empty folder"));
}

TEST(Inspect, CountsWhatIsThere) {
  const Inspection k3 = inspect({.model = fixture("tiny-k3-8l"), .deep = true, .verify = true});
  EXPECT_TRUE(k3.ok());
  EXPECT_EQ(k3.bytes_read, k3.data_bytes);
  EXPECT_GT(k3.small_tensors_read, 0);
  EXPECT_EQ(k3.layers.size(), 8U);
  EXPECT_EQ(k3.layers[0].kind, "KDA dense");
  EXPECT_EQ(k3.layers[7].kind, "MLA MoE");
  EXPECT_EQ(k3.layers[0].tensors, 23);
  int64_t tensors = 0;
  int64_t bytes = 0;
  for (const Inspection::Class& c : k3.classes) {
    tensors += c.tensors;
    bytes += c.bytes;
  }
  EXPECT_EQ(tensors, k3.tensors);
  EXPECT_EQ(bytes, k3.data_bytes);
  EXPECT_EQ(k3.classes.back().name, "not loaded");
  EXPECT_EQ(k3.to_json().at("ok"), true);
  EXPECT_THAT(k3.to_text(), HasSubstr("routed experts"));
  EXPECT_TRUE(inspect({.model = fixture("tiny-kimi-linear-hf"), .deep = true, .verify = true}).ok());
}

TEST(Inspect, HeadersAloneReadNoData) {
  const Inspection k3 = inspect({.model = fixture("tiny-k3-8l")});
  EXPECT_EQ(k3.bytes_read, 0);
  EXPECT_EQ(k3.small_tensors_read, 0);
}

TEST(Inspect, FindsBadValuesWhereverTheyAre) {
  const TemporaryFolder dir;
  golden::write(dir.path());
  const auto poke = [&](const std::string& file, const std::string& tensor, int64_t offset, std::vector<uint8_t> bytes) {
    const SafetensorsFile opened(dir.path() / file);
    std::fstream out(dir.path() / file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(opened.at(tensor).begin + offset);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  const std::string layer1 = "language_model.model.layers.1.";
  poke("model-00001-of-000002.safetensors", layer1 + "block_sparse_moe.experts.4.w3.weight_scale", 33, {255});
  poke("model-00001-of-000002.safetensors", layer1 + "self_attn.q_proj.weight", 2 * (5 * 32 + 7), {0x80, 0x7f});  // infinity
  poke("model-00002-of-000002.safetensors", "language_model.model.norm.weight", 6, {0xc0, 0x7f});                 // NaN
  const Inspection headers = inspect({.model = dir.path()});
  EXPECT_TRUE(headers.ok());
  const Inspection deep = inspect({.model = dir.path(), .deep = true});
  ASSERT_EQ(deep.problems.size(), 1U);
  EXPECT_THAT(deep.problems[0], HasSubstr("model.norm.weight"));
  int64_t last = 0;
  const Inspection whole = inspect({.model = dir.path(), .verify = true, .progress = [&](int64_t done, int64_t total) {
                                      EXPECT_GT(done, last);
                                      EXPECT_LE(done, total);
                                      last = done;
                                    }});
  EXPECT_EQ(last, whole.data_bytes);
  EXPECT_EQ(whole.problem_count, 3);
  EXPECT_THAT(whole.problems, ::testing::UnorderedElementsAre(::testing::AllOf(HasSubstr("experts.4.w3.weight_scale"),
                                                                               HasSubstr("row 33"), HasSubstr("255")),
                                                              ::testing::AllOf(HasSubstr("q_proj"), HasSubstr("index 167")),
                                                              ::testing::AllOf(HasSubstr("norm"), HasSubstr("index 3"))));
  EXPECT_FALSE(whole.to_json().at("ok").get<bool>());
}

}  // namespace
}  // namespace weft
