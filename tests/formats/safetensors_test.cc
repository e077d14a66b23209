#include "formats/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "formats/formats_test_util.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(const std::string& header, int64_t data_bytes) {
  const std::string file = safetensors_bytes(header, data_bytes);
  const auto failure = guard([&] {
    (void)parse_safetensors_header(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), "x.safetensors");
  });
  if (!failure) return "no error";
  EXPECT_EQ(failure->kind, ErrorKind::bad_checkpoint) << failure->message;
  return failure->message;
}

SafetensorsHeader parsed(const std::string& header, int64_t data_bytes) {
  const std::string file = safetensors_bytes(header, data_bytes);
  return parse_safetensors_header(std::as_bytes(std::span(file)), static_cast<int64_t>(file.size()), "x.safetensors");
}

TEST(SafetensorsHeader, EntriesInFileOrderWithFileOffsets) {
  const SafetensorsHeader header = parsed(
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"format":"pt"},)"
      R"("a":{"data_offsets":[0,4],"dtype":"F32","shape":[]}, "empty":{"dtype":"U8","shape":[0,5],"data_offsets":[4,4]}}   )",
      16);
  ASSERT_EQ(header.entries().size(), 3U);
  EXPECT_EQ(header.entries()[0].name, "a");
  EXPECT_EQ(header.entries()[1].name, "empty");
  EXPECT_EQ(header.entries()[2].name, "b");
  const TensorEntry* b = header.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::bf16);
  EXPECT_EQ(b->shape, Shape({2, 3}));
  EXPECT_EQ(b->begin, header.data_begin() + 4);
  EXPECT_EQ(b->end, header.data_begin() + 16);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_EQ(header.find(""), nullptr);
  EXPECT_EQ(header.metadata().at("format"), "pt");
}

TEST(SafetensorsHeader, MalformedHeadersAreRefusedWithTheirReason) {
  struct Case {
    std::string header;
    int64_t data_bytes;
    std::vector<std::string> wanted;
  };
  const std::string ok_a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::vector<Case> cases = {
      {"", 0, {"JSON"}},
      {"[1]", 0, {"JSON object"}},
      {"{", 0, {"JSON"}},
      {R"({"a":)" + std::string(2000, '[') + std::string(2000, ']') + "}", 0, {"nested"}},
      {"{" + ok_a + "," + ok_a + "}", 4, {"'a'", "twice"}},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0,
       {"'a'", "twice"}},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"}},
      {R"({"__metadata__":{"x":"1","x":"2"}})", 0, {"'x'", "twice"}},
      {R"({"__metadata__":{"x":1}})", 0, {"'x'", "string"}},
      {R"({"__metadata__":[]})", 0, {"__metadata__", "object"}},
      {R"({"a":5})", 0, {"'a'", "object"}},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, {"'a'", "dtype"}},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, {"'a'", "shape"}},
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, {"'a'", "data_offsets"}},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, {"'a'", "'dtype'", "twice"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1}})", 4, {"'a'", "'extra'"}},
      {R"({"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}})", 4, {"'a'", "unknown dtype", "F8_E8M0"}},
      {R"({"a":{"dtype":7,"shape":[4],"data_offsets":[0,4]}})", 4, {"'a'", "dtype"}},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, {"'a'", "shape"}},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, {"'a'", "-4"}},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4, {"'a'", "axis 0"}},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4, {"'a'", "axis 0"}},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}})", 4, {"'a'", "8 axes"}},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", 4, {"'a'", "64-bit"}},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, {"'a'", "64-bit"}},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,15]}})", 15, {"'a'", "wanted 16 bytes", "F32 [4]", "15"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, {"'a'", "begin <= end"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", 4, {"'a'", "-4"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", 4, {"'a'", "two numbers"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", 4, {"'a'", "two numbers"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":"x"}})", 4, {"'a'", "two numbers"}},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 4, {"'a'", "outside the file", "4 bytes"}},
      {"{" + ok_a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7, {"'b'", "overlap", "'a'"}},
      {"{" + ok_a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, {"'b'", "overlap", "'a'"}},
      {"{" + ok_a + R"(,"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})", 4, {"'b'", "overlap", "'a'"}},
      {"{" + ok_a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9, {"'b'", "belong to no tensor"}},
      {"{" + ok_a + "}", 5, {"end of the file", "1 bytes"}},
      {"{}", 1, {"end of the file"}},
      {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, {"JSON"}},
  };
  for (const Case& c : cases) {
    const std::string message = message_of(c.header, c.data_bytes);
    EXPECT_THAT(message, HasSubstr("[x.safetensors]")) << c.header;
    for (const std::string& part : c.wanted) EXPECT_THAT(message, HasSubstr(part)) << c.header;
  }
  EXPECT_EQ(message_of("{" + ok_a + "}", 4), "no error");
  EXPECT_EQ(message_of("{}", 0), "no error");
}

TEST(SafetensorsHeader, LengthIsCheckedBeforeAnythingIsAllocated) {
  const auto message = [](uint64_t length, int64_t file_size) {
    std::array<std::byte, 8> first{};
    std::memcpy(first.data(), &length, sizeof length);
    const auto failure = guard([&] { (void)safetensors_header_end(first, file_size, "f"); });
    return failure ? failure->message : std::string("no error");
  };
  EXPECT_THAT(message(1ULL << 62, 1000), HasSubstr("4611686018427387904 is larger than the file of 1000 bytes"));
  EXPECT_THAT(message(~0ULL, 1000), HasSubstr("larger than the file"));
  EXPECT_THAT(message(993, 1000), HasSubstr("larger than the file"));
  EXPECT_EQ(message(992, 1000), "no error");
  EXPECT_THAT(message(100'000'001, 1LL << 40), HasSubstr("at most 100000000"));
  EXPECT_THAT(message(0, 7), HasSubstr("at least 8 bytes"));
  const auto failure = guard([] { (void)safetensors_header_end({}, 0, "f"); });
  ASSERT_TRUE(failure);
}

class SafetensorsFiles : public testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(SafetensorsFiles, WriterAndReaderRoundTrip) {
  const std::filesystem::path path = folder_.path() / "x.safetensors";
  const std::vector<uint8_t> u8 = {1, 2, 3};
  const std::vector<float> f32 = {1.5F, -2.0F};
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000, 0x4040, 0x4080};
  {
    SafetensorsWriter writer(
        path, {{"u", DType::u8, {3}}, {"b", DType::bf16, {2, 2}}, {"z", DType::f32, {2}}, {"a", DType::bf16, {0}}},
        {{"format", "pt"}});
    writer.append("u", std::as_bytes(std::span(u8)).first(1));
    writer.append("z", std::as_bytes(std::span(f32)));
    writer.append("b", std::as_bytes(std::span(bf16)));
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_THROW(writer.finish(), Error);  // 'u' lacks two bytes
    writer.append("u", std::as_bytes(std::span(u8)).subspan(1));
    EXPECT_THROW(writer.append("u", std::as_bytes(std::span(u8)).first(1)), Error);
    EXPECT_THROW(writer.append("v", {}), Error);
    writer.finish();
  }
  EXPECT_EQ(files_in(folder_.path()), 1);
  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const TensorEntry& entry : file.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("z", "a", "b", "u"));  // element size descending, then name
  EXPECT_EQ(file.header().data_begin() % 8, 0);
  EXPECT_EQ(file.header().metadata().at("format"), "pt");
  EXPECT_THAT(file.view("z").as<float>(), testing::ElementsAreArray(f32));
  EXPECT_THAT(file.view("b").as<uint16_t>(), testing::ElementsAreArray(bf16));
  EXPECT_THAT(file.read("u").as<uint8_t>(), testing::ElementsAreArray(u8));
  std::array<std::byte, 2> part{};
  file.read_into(file.at("u"), 1, part);
  EXPECT_EQ(part[1], std::byte{3});
  EXPECT_THROW(file.read_into(file.at("u"), 2, part), Error);
  const auto failure = guard([&] { (void)file.view("nothing"); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, AllOf(HasSubstr("x.safetensors"), HasSubstr("'nothing'")));
}

TEST_F(SafetensorsFiles, AbandonedWriterLeavesNothing) {
  {
    const SafetensorsWriter writer(folder_.path() / "x.safetensors", {{"u", DType::u8, {3}}});
  }
  EXPECT_EQ(files_in(folder_.path()), 0);
}

TEST_F(SafetensorsFiles, SparseWriterMakesAHoleOfFullSize) {
  const std::filesystem::path path = folder_.path() / "x.safetensors";
  SafetensorsWriter writer(path, {{"big", DType::bf16, {1 << 20, 1 << 14}}, {"one", DType::f32, {1}}}, {},
                           SafetensorsWriter::Mode::sparse);
  const float one = 1.0F;
  writer.append("one", std::as_bytes(std::span(&one, 1)));
  writer.finish();
  const SafetensorsFile file(path);
  EXPECT_EQ(file.file().size(), writer.file_size());
  EXPECT_GT(file.file().size(), 32LL << 30);
  EXPECT_EQ(file.read("one").as<float>()[0], 1.0F);
  std::array<std::byte, 4> tail{std::byte{1}};
  const TensorEntry& big = file.at("big");
  file.read_into(big, big.bytes() - 4, tail);  // beyond 2^35
  EXPECT_EQ(tail[0], std::byte{0});
  EXPECT_EQ(file.view("big").as<uint16_t>()[(1LL << 34) - 1], 0);
}

TEST_F(SafetensorsFiles, UnalignedDataIsReadButNotViewed) {
  const std::filesystem::path path = folder_.path() / "x.safetensors";
  std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  while (header.size() % 4 != 1) header += ' ';
  std::ofstream(path) << safetensors_bytes(header, 0) << std::string("\0\0\x80\x3f", 4);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.read("a").as<float>()[0], 1.0F);
  EXPECT_EQ(file.bytes(file.at("a"))[3], std::byte{0x3f});
  const auto failure = guard([&] { (void)file.view("a"); });
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("multiple of 4"));
}

TEST(SafetensorsLayout, HeaderTextIsTheReferenceForm) {
  const SafetensorsLayout layout = layout_safetensors({{"b", DType::u8, {2, 3}}, {"a\"", DType::f32, {}}});
  const std::string json = R"({"a\"":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]}})";
  EXPECT_EQ(layout.header.substr(8, json.size()), json);
  EXPECT_EQ(layout.header.size() % 8, 0U);
  EXPECT_LT(layout.header.size(), 8 + json.size() + 8);
  EXPECT_EQ(layout.header.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(layout.file_size, static_cast<int64_t>(layout.header.size()) + 10);
}

TEST(SafetensorsLayout, RefusesWhatCannotBeWritten) {
  const auto message = [](std::vector<TensorSpec> specs) {
    const auto failure = guard([&] { (void)layout_safetensors(std::move(specs)); });
    return failure ? failure->message : std::string("no error");
  };
  EXPECT_THAT(message({{"a", DType::u8, {1}}, {"a", DType::f32, {1}}}), HasSubstr("'a'"));
  EXPECT_THAT(message({{"a", DType::f32, {1LL << 61}}}), HasSubstr("'a'"));
  EXPECT_THAT(message({{"a", DType::u8, {INT64_MAX - (1LL << 30)}}, {"b", DType::u8, {1LL << 31}}}), HasSubstr("'b'"));
  EXPECT_THAT(message({{"\xff", DType::u8, {1}}}), HasSubstr("UTF-8"));
  EXPECT_THAT(message({{"__metadata__", DType::u8, {1}}}), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace weft
