// Encoding that ends when there are more ids than wanted, against encoding all.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/text_fixture.h"
#include "text/tokenizer.h"
#include "text/toy_qwen.h"

namespace weft {
namespace {

std::string repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all{"",
                                            "a",
                                            "Hello WORLD's 12345\n\n  x",
                                            repeated("<think>a bad cab <|open|>", 40),
                                            repeated("e\u0301", 300),             // half as long when it is composed
                                            repeated("\u1112\u1161\u11ab", 200),  // a third
                                            repeated("\u212a", 300),              // likewise
                                            std::string(600, ' ') + "abc",
                                            std::string(60'000, 'a')};
  return all;
}

void expect_same(const LimitedIds& found, const std::vector<TokenId>& whole, int64_t most) {
  const auto count = static_cast<int64_t>(whole.size());
  if (count <= most) {
    EXPECT_EQ(found.ids, whole);
    EXPECT_EQ(found.count, count);
    EXPECT_FALSE(found.cut);
  } else {
    EXPECT_GT(found.count, most);
    EXPECT_LE(found.count, count);
    EXPECT_TRUE(found.cut || found.count == count);
  }
}

std::vector<int64_t> limits(size_t count) {
  const auto ids = static_cast<int64_t>(count);
  return {0, 1, 2, ids / 7, ids / 2, ids - 2, ids - 1, ids, ids + 1, 2 * ids, INT64_MAX};
}

TEST(LimitedEncode, IsTheWholeOrAnHonestBound) {
  for (const Tokenizer* tokenizer : {&text_test::mini(), &text_test::small_qwen()}) {
    for (const std::string& text : texts()) {
      for (const bool special : {false, true}) {
        const std::vector<TokenId> whole = tokenizer->encode(text, special);
        for (const int64_t most : limits(whole.size())) {
          if (most >= 0) expect_same(tokenizer->encode_limited(text, special, most), whole, most);
        }
      }
    }
  }
}

TEST(LimitedEncode, OfSegments) {
  for (const Tokenizer* tokenizer : {&text_test::mini(), &text_test::small_qwen()}) {
    const std::string control(tokenizer->token_bytes(tokenizer->stop_ids().front()));
    std::vector<Segment> segments;
    for (const std::string& text : texts()) {
      segments.push_back({control, true});
      segments.push_back({text, false});
    }
    segments.push_back({control, true});
    const std::vector<TokenId> whole = tokenizer->encode(segments);
    for (int64_t most = 0; most < 2000; most += 7) expect_same(tokenizer->encode_limited(segments, most), whole, most);
    for (const int64_t most : limits(whole.size())) expect_same(tokenizer->encode_limited(segments, most), whole, most);
  }
}

// What is refused by the number of its bytes is not encoded at all.
TEST(LimitedEncode, DoesNotEncodeWhatIsTooLongAnyway) {
  for (const Tokenizer* tokenizer : {&text_test::mini(), &text_test::small_qwen()}) {
    const LimitedIds found = tokenizer->encode_limited(std::string(1'000'000, 'a'), false, 100);
    EXPECT_TRUE(found.cut);
    EXPECT_TRUE(found.ids.empty());
    EXPECT_GT(found.count, 10'000);
  }
}

// Many short segments have no bytes to go by.
TEST(LimitedEncode, EndsAtTheLimit) {
  const std::vector<Segment> segments(100'000, Segment{"a", false});
  const LimitedIds found = text_test::mini().encode_limited(segments, 100);
  EXPECT_TRUE(found.cut);
  EXPECT_EQ(found.count, 101);
  EXPECT_LE(found.ids.size(), 101U);
}

}  // namespace
}  // namespace weft
