#include "formats/inventory.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "base/json.h"
#include "formats/formats_test_util.h"
#include "formats/shard_index.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

class Inventories : public testing::Test {
 protected:
  void shard(const std::string& name, std::vector<TensorSpec> tensors) {
    SafetensorsWriter writer(folder_.path() / name, std::move(tensors), {}, SafetensorsWriter::Mode::sparse);
    writer.finish();
  }
  void index(const std::string& weight_map) {
    std::ofstream(folder_.path() / kShardIndexName) << R"({"weight_map":)" << weight_map << "}";
  }
  std::string message_of(const InventoryOptions& options = {}) {
    const auto failure = guard([&] { (void)Inventory::scan(folder_.path(), options); });
    if (!failure) return "no error";
    EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
    return failure->message;
  }

  TempFolder folder_;
};

TEST_F(Inventories, DescribesEveryTensorFromHeadersAlone) {
  shard("2.safetensors", {{"b", DType::bf16, {4, 3}}, {"a", DType::f32, {}}});
  shard("1.safetensors", {{"c", DType::u8, {5}}});
  shard("goldens.safetensors", {{"d", DType::u8, {5}}});  // the index does not name it
  index(R"({"b":"2.safetensors","a":"2.safetensors","c":"1.safetensors"})");
  for (const int threads : {1, 3}) {
    const Inventory inventory = Inventory::scan(folder_.path(), {.threads = threads});
    EXPECT_TRUE(inventory.has_index());
    ASSERT_EQ(inventory.size(), 3U);
    ASSERT_EQ(inventory.files().size(), 2U);
    const TensorId b = inventory.find("b").value();
    EXPECT_EQ(inventory.name(b), "b");
    EXPECT_EQ(inventory.shape(b), Shape({4, 3}));
    EXPECT_EQ(inventory.dtype(b), DType::bf16);
    EXPECT_EQ(inventory.bytes(b), 24);
    EXPECT_EQ(inventory.file(b).name, "2.safetensors");
    const SafetensorsFile opened(inventory.path_of(inventory.file_index(b)));
    const TensorEntry entry = inventory.entry(b);
    EXPECT_EQ(entry.begin, opened.at("b").begin);
    EXPECT_EQ(entry.end, opened.at("b").end);
    EXPECT_EQ(inventory.shape(inventory.find("a").value()).rank(), 0);
    EXPECT_EQ(inventory.find("d"), std::nullopt);
    EXPECT_EQ(inventory.data_bytes(), 24 + 4 + 5);
    EXPECT_EQ(inventory.file_bytes(), static_cast<int64_t>(fs::file_size(folder_.path() / "1.safetensors") +
                                                           fs::file_size(folder_.path() / "2.safetensors")));
    const std::vector<DTypeTotal> totals = inventory.by_dtype();
    ASSERT_EQ(totals.size(), 3U);
    EXPECT_EQ(totals[0].dtype, DType::f32);
    EXPECT_EQ(totals[1].bytes, 24);
    EXPECT_EQ(totals[2].tensors, 1);
  }
}

TEST_F(Inventories, WithoutIndexAllFilesCount) {
  shard("x.safetensors", {{"a", DType::u8, {1}}});
  EXPECT_EQ(Inventory::scan(folder_.path()).size(), 1U);
  EXPECT_FALSE(Inventory::scan(folder_.path()).has_index());
  shard("y.safetensors", {{"b", DType::u8, {1}}});
  EXPECT_EQ(Inventory::scan(folder_.path()).size(), 2U);
  shard("z.safetensors", {{"a", DType::u8, {1}}});
  EXPECT_THAT(message_of(), AllOf(HasSubstr("'a'"), HasSubstr("x.safetensors"), HasSubstr("z.safetensors")));
}

TEST_F(Inventories, NothingThere) {
  EXPECT_THAT(message_of(), HasSubstr("found neither"));
  const auto failure = guard([&] { (void)Inventory::scan(folder_.path() / "absent"); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("absent"));
}

TEST_F(Inventories, AllAbsentFilesAreListed) {
  shard("2.safetensors", {{"b", DType::u8, {1}}});
  index(R"({"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"})");
  EXPECT_THAT(message_of(), AllOf(HasSubstr("2 files"), HasSubstr("1.safetensors"), HasSubstr("3.safetensors")));
}

TEST_F(Inventories, DisagreementNamesTheFirstDifferingTensor) {
  shard("1.safetensors", {{"a", DType::u8, {1}}, {"b", DType::u8, {1}}});
  shard("2.safetensors", {{"c", DType::u8, {1}}});
  index(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})");
  EXPECT_THAT(message_of(), AllOf(HasSubstr("'b'"), HasSubstr("wanted in file 2.safetensors, found in file 1.safetensors")));
  index(R"({"a":"1.safetensors","x":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})");
  EXPECT_THAT(message_of(), AllOf(HasSubstr("'x'"), HasSubstr("1.safetensors"), HasSubstr("found in no file")));
  index(R"({"a":"1.safetensors","c":"2.safetensors"})");
  EXPECT_THAT(message_of(), AllOf(HasSubstr("'b'"), HasSubstr("1.safetensors"), HasSubstr("missing in the index")));
  EXPECT_EQ(message_of({.rebuild_index = true}), "no error");
}

TEST_F(Inventories, FaultyHeaderNamesItsFile) {
  shard("1.safetensors", {{"a", DType::u8, {1}}});
  std::ofstream(folder_.path() / "2.safetensors") << "short";
  EXPECT_THAT(message_of(), HasSubstr("2.safetensors"));
  std::ofstream(folder_.path() / "2.safetensors") << std::string(100, '\x7f');
  EXPECT_THAT(message_of(), AllOf(HasSubstr("2.safetensors"), HasSubstr("larger than the file")));
}

// The broken checkpoints whose fault the files alone show.
TEST(BrokenCheckpoints, AreRefusedWithTheNamedCause) {
  const fs::path bad = fs::path(WEFT_FIXTURES) / "bad";
  const Json expect = read_json_file(bad / "expect.json");
  for (const std::string name : {"truncated-shard", "missing-shard", "header-length", "offset-outside-file"}) {
    const auto failure = guard([&] { (void)Inventory::scan(bad / name); });
    ASSERT_TRUE(failure) << name;
    EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint) << name;
    for (const Json& mention : expect.at(name).at("mention"))
      EXPECT_THAT(failure->message, HasSubstr(mention.get<std::string>())) << name;
  }
  for (const auto& [name, entry] : expect.items()) {
    const auto failure = guard([&] { (void)Inventory::scan(bad / name); });
    if (entry.at("loads").get<bool>()) {
      EXPECT_FALSE(failure) << name << ": " << failure->message;
    }
  }
}

// The files of the fixture come from another writer: rewriting them must give the same bytes.
TEST(BrokenCheckpoints, WriterReproducesAForeignFile) {
  const fs::path path = fs::path(WEFT_FIXTURES) / "bad" / "control-ok" / "model-00001-of-000002.safetensors";
  const SafetensorsFile file(path);
  std::vector<TensorSpec> specs;
  for (const TensorEntry& entry : file.entries()) specs.push_back({entry.name, entry.dtype, entry.shape});
  std::ranges::reverse(specs);
  TempFolder folder;
  SafetensorsWriter writer(folder.path() / "copy.safetensors", specs, file.header().metadata());
  for (const TensorEntry& entry : writer.entries()) {
    const Tensor tensor = file.read(entry.name);
    writer.append(entry.name, std::span(tensor.view().data, static_cast<size_t>(tensor.bytes())));
  }
  writer.finish();
  EXPECT_TRUE(read_text_file(folder.path() / "copy.safetensors") == read_text_file(path));
}

}  // namespace
}  // namespace weft
