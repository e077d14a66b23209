// Opening the part of a checkpoint that a stage needs: distributed.md 4.1 to 4.4.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/guard.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"

#include "support/golden_model.h"
#include "support/models.h"
#include "support/sharded.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::copy_part;
using testing_support::fixture;
using testing_support::Resharding;
using testing_support::TemporaryFolder;
using testing_support::write_sharded;

LayerRange layers(int64_t begin, int64_t end) { return {LayerIndex(begin), LayerIndex(end)}; }

// Everything that a stage does with its tensors when it is loaded.
void bind(const Checkpoint& checkpoint, LayerRange range) {
  checkpoint.require(range);
  checkpoint.check_small_tensors(range);
  for (const ParamSpec& p : checkpoint.params()) {
    if (!p.matrix || !checkpoint.owns(range, p)) continue;
    for (int64_t e = 0; e < p.copies; ++e) (void)checkpoint.weight(expert_name(p, e));
  }
}
std::string refusal(const fs::path& dir, const CheckpointOptions& options) {
  const auto failure = guard([&] {
    const Checkpoint checkpoint(dir, options);
    bind(checkpoint, checkpoint.layers());
  });
  return failure ? failure->message : "no error";
}

// What a stage of an untied model opens when each layer has a file of its own.
std::set<std::string> shards_of(LayerRange range, int64_t layer_count) {
  std::set<std::string> shards;
  for (LayerIndex layer = range.begin; layer < range.end; ++layer)
    shards.insert(fmt::format("layer-{:03}.safetensors", layer.value));
  if (range.begin.value == 0) shards.insert("embed.safetensors");
  if (range.end.value == layer_count) shards.insert("head.safetensors");
  return shards;
}

std::set<std::string> mapped_files(const fs::path& folder) {
  std::set<std::string> names;
  std::ifstream maps("/proc/self/maps");
  const std::string prefix = fs::canonical(folder).string() + "/";
  for (std::string line; std::getline(maps, line);)
    if (const size_t at = line.find(prefix); at != std::string::npos) names.insert(line.substr(at + prefix.size()));
  return names;
}

struct Spelling {
  std::string model;
  std::string prefix;  // in place of "language_model." or nothing

  friend void PrintTo(const Spelling& tested, std::ostream* out) { *out << tested.model << " " << tested.prefix << "model."; }
};

class Spelled : public testing::TestWithParam<Spelling> {
 protected:
  Spelled() {
    Resharding how;
    how.name_of = [](const std::string& name) {
      constexpr std::string_view kWrapper = "language_model.";
      const std::string bare = name.starts_with(kWrapper) ? name.substr(kWrapper.size()) : name;
      if (!bare.starts_with("model.") && !bare.starts_with("lm_head.")) return name;  // the vision tower
      return GetParam().prefix + bare;
    };
    write_sharded(fixture(GetParam().model), dir(), how);
  }
  [[nodiscard]] fs::path dir() const { return folder_.path() / "model"; }

  TemporaryFolder folder_;
};

// The other shards are not there; that nothing else is mapped is what the system says.
TEST_P(Spelled, AStageOpensExactlyTheShardsOfItsLayersAndReadsTheirBytesAlone) {
  const Checkpoint whole(dir());
  const int64_t count = whole.config().layer_count;
  for (const LayerRange range :
       {layers(0, 1), layers(0, 3), layers(2, 5), layers(3, 4), layers(count - 3, count), layers(0, count)}) {
    SCOPED_TRACE(fmt::format("layers [{}, {})", range.begin, range.end));
    const fs::path part = folder_.path() / fmt::format("{}-{}", range.begin, range.end);
    const std::set<std::string> shards = shards_of(range, count);
    copy_part(dir(), part, shards);
    const Checkpoint checkpoint(part, {.layers = range});
    EXPECT_EQ(checkpoint.layers(), range);
    EXPECT_EQ(checkpoint.is_partial(), range.size() != count);
    EXPECT_EQ(checkpoint.all_layers(), whole.all_layers());
    EXPECT_THAT(mapped_files(part), testing::IsEmpty());
    int64_t headers = 0;
    for (const InventoryFile& file : checkpoint.inventory().files()) headers += file.header_size;
    EXPECT_EQ(checkpoint.bytes_read().value, headers);

    bind(checkpoint, range);
    std::set<std::string> read;
    for (const FileReads& file : checkpoint.reads()) read.insert(file.file);
    EXPECT_EQ(read, shards);
    EXPECT_EQ(mapped_files(part), shards);
    // All of its tensors, and no other byte: nothing else lies in these files.
    EXPECT_EQ(checkpoint.bytes_read().value, headers + whole.weight_bytes(range).value);
    EXPECT_EQ(checkpoint.weight_bytes(range), whole.weight_bytes(range));
    for (const FileReads& file : checkpoint.reads())
      EXPECT_THAT(file.ranges, ElementsAre(ByteRange{0, file.size})) << file.file;
  }
}

// What is not opened is told apart from what is missing.
TEST_P(Spelled, OtherLayersAreRefused) {
  const Checkpoint checkpoint(dir(), {.layers = layers(2, 5)});
  const auto message = [&](auto body) {
    const auto failure = guard(body);
    return failure ? failure->message : "no error";
  };
  EXPECT_EQ(message([&] { checkpoint.require(layers(3, 5)); }), "no error");
  EXPECT_THAT(message([&] { checkpoint.require(layers(3, 6)); }), HasSubstr("layers 3 to 6: wanted a range inside 2 to 5"));
  EXPECT_THAT(message([&] { checkpoint.require(layers(1, 3)); }), HasSubstr("layers 1 to 3: wanted a range inside 2 to 5"));
  EXPECT_THAT(message([&] { (void)checkpoint.vector_f32("model.layers.5.input_layernorm.weight"); }),
              HasSubstr("model.layers.5.input_layernorm.weight': not of layers 2 to 5, which alone were opened"));
  EXPECT_THAT(message([&] { (void)model_fingerprint(checkpoint, ops::Profile::exact); }),
              HasSubstr("wanted a checkpoint with all 8 layers, found one opened for layers 2 to 5"));
  EXPECT_THAT(message([&] {
                StageOptions options;
                options.layers = layers(2, 5);
                (void)make_stage(std::make_shared<const Checkpoint>(dir(), CheckpointOptions{.layers = layers(2, 5)}), options);
              }),
              HasSubstr("wanted the fingerprint of the whole model, of which only a part is open"));
  for (const LayerRange range : {layers(0, 9), layers(-1, 2), layers(3, 3), layers(5, 4)})
    EXPECT_THAT(refusal(dir(), {.layers = range}), HasSubstr("wanted a range inside 0 to 8"));
}

INSTANTIATE_TEST_SUITE_P(Names, Spelled,
                         testing::Values(Spelling{"tiny-k3-8l", "language_model."}, Spelling{"tiny-k3-8l", ""},
                                         Spelling{"tiny-qwen3-next-8l", ""}, Spelling{"tiny-qwen3-next-8l", "language_model."}),
                         [](const auto& tested) {
                           std::string name = tested.param.model + (tested.param.prefix.empty() ? "_model" : "_language_model");
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Two stages share a file: each reads its own tensors' ranges. The rest of the file is not looked at: it may be anything.
TEST(PartialCheckpoint, AShardOfSeveralStagesCostsEachItsOwnPart) {
  const TemporaryFolder folder;
  Resharding how;
  how.file_of = [](const std::string&) { return "model-all.safetensors"; };
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model", how);
  const Checkpoint whole(folder.path() / "model");
  int64_t sum = 0;
  for (const LayerRange range : {layers(0, 3), layers(3, 4), layers(4, 8)}) {
    const Checkpoint checkpoint(folder.path() / "model", {.layers = range});
    bind(checkpoint, range);
    const std::vector<FileReads> reads = checkpoint.reads();
    ASSERT_EQ(reads.size(), 1U);
    const int64_t header = checkpoint.inventory().files()[0].header_size;
    EXPECT_EQ(reads[0].bytes().value, header + whole.weight_bytes(range).value);
    for (const ByteRange& r : reads[0].ranges) EXPECT_LT(r.begin, r.end);
    sum += checkpoint.bytes_read().value - header;
  }
  EXPECT_EQ(sum, whole.weight_bytes(whole.all_layers()).value);

  // Every byte that is not of layers 3 to 5 becomes 0xFF: NaN in every type.
  const LayerRange range = layers(3, 6);
  std::vector<ByteRange> ranges;
  {
    const Checkpoint checkpoint(folder.path() / "model", {.layers = range});
    bind(checkpoint, range);
    ranges = checkpoint.reads()[0].ranges;
  }
  const fs::path file = folder.path() / "model/model-all.safetensors";
  std::string bytes = read_text_file(file);
  std::vector<bool> keep(bytes.size());
  for (const ByteRange& r : ranges) std::fill(keep.begin() + r.begin, keep.begin() + r.end, true);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (!keep[i]) bytes[i] = '\xFF';
  write_file_atomic(file, bytes);
  EXPECT_EQ(refusal(folder.path() / "model", {.layers = range}), "no error");
  EXPECT_THAT(refusal(folder.path() / "model", {.layers = layers(5, 7)}), HasSubstr("wanted finite values"));
}

TEST(PartialCheckpoint, WithoutAnIndexTheHeadersOfAllFilesAreRead) {
  const TemporaryFolder folder;
  Resharding how;
  how.index = false;
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "several", how);
  how.file_of = [](const std::string&) { return "model.safetensors"; };
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "one", how);
  for (const char* name : {"several", "one"}) {
    const Checkpoint whole(folder.path() / name);
    const Checkpoint checkpoint(folder.path() / name, {.layers = layers(2, 4)});
    EXPECT_EQ(checkpoint.inventory().files().size(), whole.inventory().files().size());
    bind(checkpoint, layers(2, 4));
    int64_t headers = 0;
    std::set<std::string> used;
    for (const InventoryFile& file : checkpoint.inventory().files()) headers += file.header_size;
    EXPECT_EQ(checkpoint.bytes_read().value, headers + whole.weight_bytes(layers(2, 4)).value);
    std::vector<std::string> digests;
    for (const ShardDigest& digest : shard_digests(checkpoint)) digests.push_back(digest.file);
    if (std::string_view(name) == "one") {
      EXPECT_THAT(digests, ElementsAre("model.safetensors"));
    } else {
      EXPECT_THAT(digests, ElementsAre("layer-002.safetensors", "layer-003.safetensors"));
    }
  }
}

// With tied embeddings the last stage reads the table too, and no head.
TEST(PartialCheckpoint, TheTableOfATiedModelIsOfTheLastStageToo) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-qwen3-next-tied-mlponly"), folder.path() / "model");
  const int64_t count = Checkpoint(folder.path() / "model").config().layer_count;
  const auto files = [&](LayerRange range) {
    std::vector<std::string> names;
    const Checkpoint checkpoint(folder.path() / "model", {.layers = range});
    bind(checkpoint, range);
    for (const FileReads& file : checkpoint.reads()) names.push_back(file.file);
    return names;
  };
  EXPECT_THAT(files(layers(count - 1, count)), testing::Contains("embed.safetensors"));
  EXPECT_THAT(files(layers(1, count - 1)), testing::Not(testing::Contains("embed.safetensors")));
  EXPECT_THAT(files(layers(0, 1)), ElementsAre("embed.safetensors", "layer-000.safetensors"));
}

TEST(PartialCheckpoint, WhatIsMissingOrElsewhereIsNamed) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model");
  const fs::path dir = folder.path() / "model";
  const Json index = read_json_file(dir / kShardIndexName);
  const auto with = [&](const std::function<void(Json&)>& change, LayerRange range) {
    Json other = index;
    change(other["weight_map"]);
    write_file_atomic(dir / kShardIndexName, other.dump());
    return refusal(dir, {.layers = range});
  };
  const std::string norm = "language_model.model.layers.3.input_layernorm.weight";
  const auto nothing = [](Json&) {};
  EXPECT_EQ(with(nothing, layers(3, 5)), "no error");
  // Gone from the index, which the header contradicts.
  EXPECT_THAT(with([&](Json& map) { map.erase(norm); }, layers(3, 5)), HasSubstr("'" + norm + "': found in file layer-003"));
  EXPECT_EQ(with([&](Json& map) { map.erase(norm); }, layers(4, 6)), "no error");
  // Listed in a file of the stage and in one of another that is not opened.
  for (const char* file : {"layer-004.safetensors", "head.safetensors"}) {
    EXPECT_THAT(with([&](Json& map) { map[norm] = file; }, layers(3, 5)),
                HasSubstr("'" + norm + "': wanted in file " + file + ", found in file layer-003.safetensors"));
  }
  EXPECT_THAT(
      with([&](Json& map) { map["language_model.model.layers.3.more.weight"] = "layer-003.safetensors"; }, layers(3, 5)),
      HasSubstr("layers.3.more.weight': wanted in file layer-003.safetensors, found no such tensor in it"));
  // An unknown tensor is every stage's error.
  for (const LayerRange range : {layers(0, 2), layers(3, 5)}) {
    EXPECT_THAT(with([&](Json& map) { map["language_model.model.more.weight"] = "vision.safetensors"; }, range),
                HasSubstr("tensor 'language_model.model.more.weight': unknown to kimi_k3"));
  }
  // Absent shards: those of the stage.
  EXPECT_EQ(with(nothing, layers(3, 5)), "no error");
  fs::remove(dir / "layer-003.safetensors");
  fs::remove(dir / "layer-004.safetensors");
  fs::remove(dir / "layer-006.safetensors");
  EXPECT_THAT(refusal(dir, {.layers = layers(3, 6)}),
              HasSubstr("the index names 2 files that are not there: layer-003.safetensors, layer-004.safetensors"));
  EXPECT_EQ(refusal(dir, {.layers = layers(5, 6)}), "no error");
  EXPECT_THAT(refusal(dir, {}), HasSubstr("3 files that are not there"));

  // A tensor that no file has.
  const TemporaryFolder other;
  Resharding how;
  how.name_of = [&](const std::string& name) { return name == norm ? std::string() : name; };
  write_sharded(fixture("tiny-k3-8l"), other.path() / "model", how);
  EXPECT_THAT(refusal(other.path() / "model", {.layers = layers(3, 5)}),
              HasSubstr("tensor '" + norm + "': missing in the index, wanted BF16 ["));
  EXPECT_EQ(refusal(other.path() / "model", {.layers = layers(4, 6)}), "no error");
}

// A configuration that contradicts the names of any layer is refused by all stages.
TEST(PartialCheckpoint, ThePackedPolicyIsThatOfTheWholeIndex) {
  const TemporaryFolder folder;
  golden::write(folder.path() / "golden");  // layer 0 has nothing packed
  write_sharded(folder.path() / "golden", folder.path() / "model");
  const fs::path dir = folder.path() / "model";
  EXPECT_EQ(refusal(dir, {.layers = layers(0, 1)}), "no error");
  Json config = golden::config();
  config["text_config"]["quantization_config"]["ignore"].push_back("re:.*layers\\.4\\..*experts.*");
  write_file_atomic(dir / "config.json", config.dump());
  for (const LayerRange range : {layers(0, 1), layers(1, 3), layers(4, 5)})
    EXPECT_THAT(refusal(dir, {.layers = range}), HasSubstr("lies outside the packed-weight policy"));
  config["text_config"].erase("quantization_config");
  write_file_atomic(dir / "config.json", config.dump());
  for (const LayerRange range : {layers(0, 1), layers(4, 5)})
    EXPECT_THAT(refusal(dir, {.layers = range}), HasSubstr("wanted 'quantization_config' for 96 packed tensors"));
}

TEST(PartialCheckpoint, TheAuditListsFilesAndRanges) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model");
  const Checkpoint checkpoint(folder.path() / "model", {.layers = layers(2, 4)});
  (void)checkpoint.vector_f32("model.layers.2.input_layernorm.weight");
  const Json audit = checkpoint.load_audit();
  EXPECT_EQ(audit.at("layers"), Json({2, 4}));
  EXPECT_EQ(audit.at("model").get<std::string>(), (folder.path() / "model").string());
  std::map<std::string, Json> files;
  int64_t sum = 0;
  for (const Json& file : audit.at("files")) {
    files[file.at("file").get<std::string>()] = file;
    int64_t read = 0;
    for (const Json& range : file.at("ranges")) read += range.at(1).get<int64_t>() - range.at(0).get<int64_t>();
    EXPECT_EQ(read, file.at("read").get<int64_t>());
    sum += read;
  }
  EXPECT_EQ(audit.at("read").get<int64_t>(), sum);
  ASSERT_EQ(files.size(), 4U);
  const auto config_size = static_cast<int64_t>(fs::file_size(folder.path() / "model/config.json"));
  EXPECT_EQ(files.at("config.json").at("ranges"), Json::array({Json({0, config_size})}));
  EXPECT_TRUE(files.contains("model.safetensors.index.json"));
  const Inventory& inventory = checkpoint.inventory();
  const TensorId norm = inventory.find("language_model.model.layers.2.input_layernorm.weight").value();
  EXPECT_EQ(files.at("layer-002.safetensors").at("read").get<int64_t>(),
            inventory.file(norm).header_size + inventory.bytes(norm));
  EXPECT_EQ(files.at("layer-003.safetensors").at("ranges"), Json::array({Json({0, inventory.files()[1].header_size})}));
  // What a digest reads is told too: all of a small shard.
  (void)shard_digests(checkpoint);
  for (const FileReads& file : checkpoint.reads()) EXPECT_THAT(file.ranges, ElementsAre(ByteRange{0, file.size}));
}

TEST(FingerprintOfParts, AnySplitGivesThatOfTheWhole) {
  for (const char* model : {"tiny-k3-8l", "tiny-qwen3-next-tied-mlponly"}) {
    SCOPED_TRACE(model);
    const TemporaryFolder folder;
    write_sharded(fixture(model), folder.path() / "model");
    const fs::path dir = folder.path() / "model";
    const Checkpoint whole(dir);
    const int64_t count = whole.config().layer_count;
    const std::string wanted = model_fingerprint(whole, ops::Profile::bf16);
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{1}, {3}, {count - 1}, {2, 5}, {1, 2, 3, 4}}) {
      std::vector<ShardDigest> digests;
      int64_t begin = 0;
      std::vector<int64_t> ends = cuts;
      ends.push_back(count);
      for (const int64_t end : ends) {
        const Checkpoint part(dir, {.layers = layers(begin, end)});
        const std::vector<ShardDigest> some = shard_digests(part);
        digests.insert(digests.begin(), some.begin(), some.end());  // the last stage's first
        EXPECT_EQ(config_text(part), config_text(whole));
        begin = end;
      }
      EXPECT_EQ(combine_fingerprint(config_text(whole), digests, ops::Profile::bf16), wanted);
      EXPECT_NE(combine_fingerprint(config_text(whole), digests, ops::Profile::exact), wanted);
      EXPECT_NE(combine_fingerprint(config_text(whole), digests, ops::Profile::bf16, "bf16"), wanted);
      EXPECT_NE(combine_fingerprint(config_text(whole) + " ", digests, ops::Profile::bf16), wanted);
      digests.pop_back();
      EXPECT_NE(combine_fingerprint(config_text(whole), digests, ops::Profile::bf16), wanted);
    }
  }
}

// A shard of the vision tower alone is opened by no stage.
TEST(FingerprintOfParts, ShardsWithoutTheModelDoNotCount) {
  const TemporaryFolder folder;
  write_sharded(fixture("tiny-k3-8l"), folder.path() / "model");
  const Checkpoint whole(folder.path() / "model");
  ASSERT_TRUE(fs::exists(folder.path() / "model/vision.safetensors"));
  const std::vector<ShardDigest> digests = shard_digests(whole);
  EXPECT_EQ(digests.size(), 10U);
  EXPECT_FALSE(std::ranges::any_of(digests, [](const ShardDigest& d) { return d.file == "vision.safetensors"; }));
  EXPECT_THAT(digests[0].sha256, testing::MatchesRegex("[0-9a-f]{64}"));
}

TEST(FingerprintOfParts, TwoContentsOfOneShardAreRefused) {
  const std::string a(64, 'a');
  const std::string b(64, 'b');
  const auto message = [&](const std::vector<ShardDigest>& digests) {
    const auto failure = guard([&] { (void)combine_fingerprint("{}", digests, ops::Profile::exact); });
    return failure ? failure->message : "no error";
  };
  EXPECT_EQ(message({{"x", a}, {"y", b}, {"x", a}}), "no error");
  EXPECT_EQ(combine_fingerprint("{}", std::vector<ShardDigest>{{"x", a}, {"y", b}, {"x", a}}, ops::Profile::exact),
            combine_fingerprint("{}", std::vector<ShardDigest>{{"y", b}, {"x", a}}, ops::Profile::exact));
  EXPECT_THAT(message({{"x", a}, {"y", b}, {"x", b}}),
              HasSubstr("shard 'x': wanted one content on all stages, found digests " + a + " and " + b));
  EXPECT_THAT(message({{"x", "abc"}}), HasSubstr("shard 'x': wanted a digest of 64 hexadecimal digits, found 'abc'"));
}

}  // namespace
}  // namespace weft
