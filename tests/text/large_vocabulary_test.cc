#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/text_fixture.h"
#include "text/toy_vocabulary.h"

namespace weft {
namespace {

// The published size. How long it takes is a matter of bench/text_bench.
TEST(LargeVocabulary, LoadsAndEncodes) {
  constexpr size_t kRanks = 163'584;
  const auto tokens = text_test::toy_tokens(kRanks);
  const Tokenizer tokenizer = make_kimi_tokenizer({.tiktoken_model = text_test::model_file(tokens),
                                                   .tokenizer_config = text_test::config_file(kRanks),
                                                   .config = {},
                                                   .generation_config = {}});
  EXPECT_EQ(tokenizer.rank_count(), 163'584);
  EXPECT_EQ(tokenizer.vocab_size(), 163'840);
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_EQ(tokenizer.token_bytes(static_cast<TokenId>(i)), tokens[i]);
    // A token of one piece is found as a whole.
    if (i >= 256) {
      ASSERT_EQ(tokenizer.encode(tokens[i]), std::vector<TokenId>{static_cast<TokenId>(i)}) << tokens[i];
    }
  }
  const std::string text = text_test::toy_text(tokens, 1 << 20, 3);
  const auto ids = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode_bytes(ids), text);
  EXPECT_LT(ids.size(), text.size() / 2);
}

// Runs that are one piece of 100,000 bytes; the naive merge would need minutes for each.
TEST(LargeVocabulary, LongPiecesAreNotQuadratic) {
  std::string emoji;
  while (emoji.size() < 1'000'000) emoji += "\xF0\x9F\x98\x80";
  for (const std::string& text : {emoji, std::string(1'000'000, ' '), std::string(1'000'000, 'a'), std::string(1'000'000, '!')})
    EXPECT_EQ(text_test::mini().decode_bytes(text_test::mini().encode(text)), text);
  // The search for control tokens is linear too.
  std::string opens;
  while (opens.size() < 1'000'000) opens += "<|reserved_token_";
  EXPECT_EQ(text_test::mini().decode_bytes(text_test::mini().encode(opens, true)), opens);
}

}  // namespace
}  // namespace weft
