#include "formats/shard_index.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ShardIndex parsed(const std::string& text) { return ShardIndex::parse(std::as_bytes(std::span(text)), "index.json"); }

std::string message_of(const std::string& text) {
  const auto failure = guard([&] { (void)parsed(text); });
  if (!failure) return "no error";
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint);
  EXPECT_THAT(failure->message, HasSubstr("[index.json]"));
  return failure->message;
}

TEST(ShardIndex, KeepsTensorsAndFilesInOrder) {
  const ShardIndex index = parsed(R"({"metadata":{"total_size":12,"other":[1,{"x":null}]},
    "weight_map":{"b":"2.safetensors","a":"1.safetensors","\u0063":"2.safetensors"}, "extra":1})");
  EXPECT_EQ(index.size(), 3U);
  EXPECT_EQ(index.name(0), "b");
  EXPECT_EQ(index.name(2), "c");
  EXPECT_THAT(index.files(), ElementsAre("2.safetensors", "1.safetensors"));
  EXPECT_EQ(index.file_of(0), 0U);
  EXPECT_EQ(index.file_of(1), 1U);
  EXPECT_EQ(index.file_of(2), 0U);
  EXPECT_EQ(index.find("a"), 1U);
  EXPECT_EQ(index.find("d"), std::nullopt);
  EXPECT_EQ(index.total_size(), 12);
  EXPECT_EQ(parsed(R"({"weight_map":{"a":"f"},"metadata":{"total_size":1.5e12}})").total_size(), 1'500'000'000'000);
  EXPECT_EQ(parsed(R"({"weight_map":{"a":"f"}})").total_size(), std::nullopt);
}

TEST(ShardIndex, FaultsAreNamed) {
  EXPECT_THAT(message_of(""), HasSubstr("JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("object"));
  EXPECT_THAT(message_of("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"})"), HasSubstr("JSON"));
  EXPECT_THAT(message_of(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(message_of(R"({"weight_map":{}})"), HasSubstr("found none"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f","b":"f","a":"g"}})"), HasSubstr("'a' twice"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"},"weight_map":{"b":"f"}})"), HasSubstr("'weight_map' twice"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":1}})"), HasSubstr("'a'"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"},"metadata":{"total_size":-1}})"), HasSubstr("total_size"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"},"metadata":{"total_size":"1"}})"), HasSubstr("total_size"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"},"metadata":{"x":1,"x":1}})"), HasSubstr("metadata.x"));
  EXPECT_THAT(message_of(R"({"weight_map":{"a":"f"},"x":)" + std::string(300, '[') + std::string(300, ']') + "}"),
              HasSubstr("nested"));
}

TEST(ShardIndex, FileNamesStayInTheFolder) {
  for (const char* name : {"/etc/passwd", "a/b", "..", "a..b", R"(a\\b)", "", ".", R"(a\u0000b)", R"(\u002e\u002e)"}) {
    const std::string message = message_of(fmt::format(R"({{"weight_map":{{"t":"{}"}}}})", name));
    EXPECT_THAT(message, HasSubstr("tensor 't': the file name")) << name;
  }
  EXPECT_EQ(message_of(R"({"weight_map":{"t":"model-00001-of-000096.safetensors"}})"), "no error");
}

TEST(NameTable, FindsEveryNameAmongManyAndNoOther) {
  NameTable table;
  for (int i = 0; i < 50000; ++i) EXPECT_EQ(table.insert("model.layers." + std::to_string(i)), static_cast<uint32_t>(i));
  EXPECT_EQ(table.insert("model.layers.77"), std::nullopt);
  for (int i = 0; i < 50000; ++i) ASSERT_EQ(table.find("model.layers." + std::to_string(i)), static_cast<uint32_t>(i));
  EXPECT_EQ(table.find("model.layers.50000"), std::nullopt);
  EXPECT_EQ(table.find(""), std::nullopt);
  EXPECT_EQ(table.insert(""), 50000U);
  EXPECT_EQ(table.find(""), 50000U);
  EXPECT_EQ(table[50000], "");
  EXPECT_EQ(table[49999], "model.layers.49999");
}

}  // namespace
}  // namespace weft
