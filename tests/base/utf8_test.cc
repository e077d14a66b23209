#include "base/utf8.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

std::string streamed(const std::string& bytes, const std::vector<size_t>& cuts) {
  Utf8Decoder decoder;
  std::string out;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    decoder.feed(std::string_view(bytes).substr(begin, cut - begin), out);
    EXPECT_FALSE(find_ill_formed_utf8(out)) << "what went out is whole characters";
    begin = cut;
  }
  decoder.feed(std::string_view(bytes).substr(begin), out);
  decoder.flush(out);
  EXPECT_FALSE(decoder.pending());
  return out;
}

TEST(Utf8, ExamplesOfTheSpecification) {
  Utf8Decoder decoder;
  std::string out;
  decoder.feed("\xE4\xBD", out);
  EXPECT_EQ(out, "");
  decoder.feed("\xA0!", out);
  EXPECT_EQ(out, "你!");
  out.clear();
  decoder.feed("\xE4\xBD", out);
  EXPECT_EQ(out, "");
  decoder.feed("A", out);
  EXPECT_EQ(out,
            "\xEF\xBF\xBD"
            "A");
}

// Unicode 16.0 table 3-8 and its neighbours.
TEST(Utf8, OneReplacementForEachMaximalIllFormedPart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(to_valid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8, AnyCutsGiveTheSameText) {
  const std::string texts[] = {"aé你😀b",
                               "\xF0\x9F\x98\xF0\x9F\x98\x80",
                               "\xE4\xBD\xE4\xBD\xA0\xC3",
                               "\xF4\x8F\xBF\xBF\xF4\x90\x80\x80",
                               "\xED\x9F\xBF\xEE\x80\x80\xED\xA0\x80",
                               "\xF0\x90\x80"};
  for (const std::string& text : texts) {
    const std::string whole = to_valid_utf8(text);
    for (size_t first = 0; first <= text.size(); ++first) {
      for (size_t second = first; second <= text.size(); ++second) EXPECT_EQ(streamed(text, {first, second}), whole);
    }
  }
}

TEST(Utf8, FindsTheFirstIllFormedByte) {
  EXPECT_FALSE(find_ill_formed_utf8("aé你😀"));
  EXPECT_EQ(find_ill_formed_utf8("é\xE4\xBD"), 2u);
  EXPECT_EQ(find_ill_formed_utf8("a\x80"), 1u);
}

TEST(Utf8, ShortenedBetweenCharacters) {
  EXPECT_EQ(shortened(std::string(40, '1')), std::string(40, '1'));
  EXPECT_EQ(shortened(std::string(41, '1')), std::string(40, '1') + "...");
  EXPECT_EQ(shortened("aé你😀", 3), "aé...");
  EXPECT_EQ(shortened("aé你😀", 4), "aé...");
  EXPECT_EQ(shortened("aé你😀", 9), "aé你...");
  EXPECT_EQ(shortened("aé你😀", 10), "aé你😀");
  EXPECT_EQ(shortened("", 0), "");
}

}  // namespace
}  // namespace weft
