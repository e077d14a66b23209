#include "text/pre_tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/text_fixture.h"
#include "text/unicode.h"

namespace weft {
namespace {

using testing::ElementsAre;

// Random strings, cut by a regular expression engine (tools/make_pre_token_cases.py).
TEST(PreTokenizer, CutsAsTheRegularExpression) {
  const Json cases = read_json_file(text_test::fixture("pre_tokens.json"));
  ASSERT_EQ(cases.size(), 3000u);
  for (const Json& test : cases) {
    const auto expected = test.get<std::vector<std::string>>();
    std::string text;
    for (const std::string& piece : expected) text += piece;
    std::vector<std::string> pieces;
    for (const std::string_view piece : pieces_of(text, kimi_piece_end)) pieces.emplace_back(piece);
    ASSERT_EQ(pieces, expected);
  }
}

TEST(PreTokenizer, CheckValuesOfTheSpecification) {
  EXPECT_THAT(pieces_of("Hello WORLD's 12345 你好world\n\n  x", kimi_piece_end),
              ElementsAre("Hello", " WORLD's", " ", "123", "45", " ", "你好", "world", "\n\n", " ", " x"));
  EXPECT_THAT(pieces_of("XMLHttpRequest don'T", kimi_piece_end), ElementsAre("XMLHttp", "Request", " don'T"));
  EXPECT_THAT(pieces_of("Kimi聊天bot", kimi_piece_end), ElementsAre("Kimi", "聊天", "bot"));
  EXPECT_THAT(pieces_of("3.14  \n y", kimi_piece_end), ElementsAre("3", ".", "14", "  \n", " y"));
  EXPECT_TRUE(pieces_of("", kimi_piece_end).empty());
}

TEST(PreTokenizer, TakesEveryCharacterAlone) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(kimi_piece_end(text, 0, char_classes()), text.size()) << code;
    const Utf8Step step = utf8_step(text);
    ASSERT_TRUE(step.good && step.code == code && step.length == text.size()) << code;
  }
}

// Classes that the Unicode Character Database gives to a few characters each.
TEST(PreTokenizer, CharacterClasses) {
  const uint8_t* classes = char_classes();
  EXPECT_EQ(classes['A'], kLetter | kUpperRun);
  EXPECT_EQ(classes['z'], kLetter | kLowerRun);
  EXPECT_EQ(classes[0x01C5], kLetter | kUpperRun);              // Lt
  EXPECT_EQ(classes[0x02B0], kLetter | kUpperRun | kLowerRun);  // Lm
  EXPECT_EQ(classes[0x05D0], kLetter | kUpperRun | kLowerRun);  // Lo
  EXPECT_EQ(classes[0x0301], kMark | kUpperRun | kLowerRun);
  EXPECT_EQ(classes[0x4E2D], kLetter | kHan);
  EXPECT_EQ(classes[0x3005], kLetter | kHan);
  EXPECT_EQ(classes[0x3007], kNumber | kHan);
  EXPECT_EQ(classes[0x2E80], kHan);
  EXPECT_EQ(classes[0x323AF], kLetter | kHan);  // the last of CJK extension H
  EXPECT_EQ(classes[0x00BD], kNumber);
  EXPECT_EQ(classes[0x85], kSpace);
  EXPECT_EQ(classes[0x3000], kSpace);
  EXPECT_EQ(classes[0x200B], 0);  // ZERO WIDTH SPACE is no White_Space
  EXPECT_EQ(classes[0x1C], 0);
}

}  // namespace
}  // namespace weft
