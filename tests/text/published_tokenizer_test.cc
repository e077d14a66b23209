// The checks of prompt_and_api.md 1.7, which need the published K3 tokenizer. Put tiktoken.model and tokenizer_config.json into
// models/kimi-k3; without them this file registers no test (docs/text.md).
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/chat.h"

namespace weft {
namespace {

std::vector<std::string> published_folders() {
  const std::filesystem::path folder = std::filesystem::path(WEFT_SOURCE_DIR) / "models/kimi-k3";
  if (!std::filesystem::exists(folder / "tiktoken.model")) return {};
  return {folder.string()};
}

class PublishedTokenizer : public testing::TestWithParam<std::string> {
 protected:
  const ChatFormat format = ChatFormat::load(GetParam());

  size_t count(const std::string& request) const { return format.render(request).ids.size(); }
};

TEST_P(PublishedTokenizer, HasTheExpectedIds) {
  EXPECT_EQ(format.tokenizer().rank_count(), 163'584);
  EXPECT_EQ(format.tokenizer().vocab_size(), 163'840);
  EXPECT_EQ(format.tokenizer().encode("message"), std::vector<TokenId>{2778});
  EXPECT_EQ(format.tokenizer().encode("response"), std::vector<TokenId>{12092});
  EXPECT_EQ(format.tokenizer().encode("think"), std::vector<TokenId>{39964});
}

TEST_P(PublishedTokenizer, CountsThePublishedPrompts) {
  const std::string messages =
      R"("messages": [{"role": "system", "content": "你是一个简洁、准确的助手。"}, {"role": "user", "content": "你好"}])";
  EXPECT_EQ(count(fmt::format(R"({{{}, "thinking": false, "prefill_channel": false}})", messages)), 36u);
  EXPECT_EQ(count(fmt::format(R"({{{}, "reasoning_effort": "max", "prefill_channel": false}})", messages)), 103u);
  EXPECT_EQ(count(fmt::format(R"({{{}, "thinking": false}})", messages)), 39u);
  EXPECT_EQ(count(fmt::format(R"({{{}, "reasoning_effort": "max"}})", messages)), 106u);
  EXPECT_EQ(count(R"({"messages": [{"role": "user", "content": "Who is Albert Einstein?"}]})"), 93u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedTokenizer);
INSTANTIATE_TEST_SUITE_P(Found, PublishedTokenizer, testing::ValuesIn(published_folders()));

}  // namespace
}  // namespace weft
