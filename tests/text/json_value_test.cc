#include "text/json_value.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace weft {
namespace {

using testing::HasSubstr;

std::string rewritten(std::string_view json, JsonStyle style = {}) { return write_json(parse_json_value(json, "test"), style); }

std::string refusal(std::string_view json) {
  try {
    (void)parse_json_value(json, "test");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_FALSE(try_parse_json_value(json));
    return error.what();
  }
  ADD_FAILURE() << "taken: " << json;
  return "";
}

TEST(JsonValue, KeepsLiteralsAndOrder) {
  EXPECT_EQ(rewritten(R"( {"b" : [1e2, -0, 1.50,12345678901234567890], "a":{"z":null,"y":true} } )"),
            R"({"b":[1e2,-0,1.50,12345678901234567890],"a":{"z":null,"y":true}})");
  EXPECT_EQ(rewritten(R"({"b":1,"a":{"z":[{"d":1,"c":2}],"é":1,"y":false},"B":""})", {.spaced = true, .sort_keys = true}),
            R"({"B": "", "a": {"y": false, "z": [{"c": 2, "d": 1}], "é": 1}, "b": 1})");
  const std::string source = R"({"a": [1, 2 ], "b":1e2})";
  const JsonValue value = parse_json_value(source, "test");
  EXPECT_EQ(source.substr(value.members[0].second.begin, value.members[0].second.end - value.members[0].second.begin),
            "[1, 2 ]");
  EXPECT_EQ(value.find("b")->text, "1e2");
  EXPECT_EQ(value.find("c"), nullptr);
}

TEST(JsonValue, Strings) {
  EXPECT_EQ(parse_json_value(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00")", "test").text, "\"\\/\b\f\n\r\tAé😀");
  EXPECT_EQ(rewritten(R"("\u0000\u001f\u007f\/\"\\é\u2028")"), "\"\\u0000\\u001f\x7F/\\\"\\\\é\xE2\x80\xA8\"");
  EXPECT_EQ(parse_json_value(R"("\ud800")", "test").text, "\xEF\xBF\xBD");
  EXPECT_EQ(parse_json_value(R"("\ud800\ud83d\ude00")", "test").text, "\xEF\xBF\xBD😀");
  EXPECT_EQ(parse_json_value(R"("\udc00x\ud800\n")", "test").text, "\xEF\xBF\xBDx\xEF\xBF\xBD\n");
}

TEST(JsonValue, Refuses) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "[1",
                           "[1,",
                           "[1,]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{,}",
                           "nul",
                           "nulll",
                           "True",
                           "01",
                           "-",
                           "1.",
                           ".5",
                           "1e",
                           "1e+",
                           "+1",
                           "0x1",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "\"",
                           "\"a",
                           "\"\\",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u12G4\"",
                           "\"\\ud800\\u12\"",
                           "\"\n\"",
                           "\"\x01\"",
                           "1 2",
                           "[1] x",
                           "'a'",
                           "\"\xC3\"",
                           "\"\xED\xA0\x80\"",
                           "\xEF\xBB\xBF{}",
                           "{\"a\":1 \"b\":2}",
                           "[1 2]",
                           "{\"a\" 1}"})
    EXPECT_THAT(refusal(text), HasSubstr("JSON at byte")) << text;
  EXPECT_THAT(refusal(R"({"a":{"k":1,"b":2,"k":3}})"),
              testing::EndsWith("wanted each key once, found 'k' twice in the object that ends there"));
  EXPECT_THAT(refusal("[\x1b]"), HasSubstr("found \\x1b]"));
  EXPECT_THAT(refusal("\"\xff\""), HasSubstr("found \\xff"));
  EXPECT_THAT(refusal(R"({"\u0061":1,"a":3})"), HasSubstr("'a' twice"));
  EXPECT_TRUE(try_parse_json_value(R"({"a":1,"a":3})", {.duplicate_keys = true}));
  EXPECT_EQ(try_parse_json_value(R"({"a":1,"a":3})", {.duplicate_keys = true})->find("a")->text, "3");
}

TEST(JsonValue, DepthIsBounded) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(rewritten(nested(128)), nested(128));
  EXPECT_THAT(refusal(nested(129)), HasSubstr("nesting of at most 128"));
  EXPECT_THAT(refusal(std::string(1'000'000, '[')), HasSubstr("nesting of at most 128"));
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("nesting of at most 128"));
}

}  // namespace
}  // namespace weft
