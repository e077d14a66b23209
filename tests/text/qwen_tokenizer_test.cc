#include "text/qwen_tokenizer.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/normalize.h"
#include "text/text_fixture.h"
#include "text/toy_qwen.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using text_test::fixture;
using text_test::ids_of;
using text_test::qwen;
using text_test::small_qwen;

const Json& cases() {
  static const Json all = read_json_file(fixture("qwen_cases.json"));
  return all;
}

TEST(QwenTokenizer, IdsOfAllCases) {
  for (const Json& test : cases()["cases"])
    EXPECT_EQ(qwen().encode(test["text"].get<std::string>(), true), ids_of(test["ids"])) << test["text"];
}

TEST(QwenTokenizer, DecodesAllCases) {
  for (const Json& test : cases()["cases"])
    EXPECT_EQ(qwen().decode(ids_of(test["ids"]), ControlText::all), test["decoded"].get<std::string>()) << test["text"];
}

// A stream of tokens, decoded as they come, is the whole.
TEST(QwenTokenizer, DecodesAllCasesTokenByToken) {
  for (const Json& test : cases()["cases"]) {
    Utf8Decoder decoder;
    std::string streamed;
    for (const TokenId id : ids_of(test["ids"])) decoder.feed(qwen().token_bytes(id), streamed);
    decoder.flush(streamed);
    EXPECT_EQ(streamed, test["decoded"].get<std::string>()) << test["text"];
  }
}

TEST(QwenTokenizer, ReadsIdsFromTheFiles) {
  EXPECT_EQ(qwen().rank_count(), 151643);
  EXPECT_EQ(qwen().vocab_size(), 151669);
  EXPECT_THAT(qwen().stop_ids(), ElementsAre(151643, 151645));
  EXPECT_EQ(qwen().control_id("<think>"), 151667);
  EXPECT_EQ(qwen().control_id("</tool_response>"), 151666);
  EXPECT_TRUE(qwen().is_special(151645));
  EXPECT_FALSE(qwen().is_special(151657));
  EXPECT_FALSE(qwen().is_reserved(151668));
}

TEST(QwenTokenizer, TextCannotSpellAControlToken) {
  for (TokenId id = qwen().rank_count(); id < qwen().vocab_size(); ++id) {
    const std::string name(qwen().token_bytes(id));
    for (const TokenId found : qwen().encode(fmt::format("a{}b", name))) EXPECT_LT(found, qwen().rank_count()) << name;
    EXPECT_THAT(qwen().encode(name, true), ElementsAre(id));
  }
}

TEST(QwenPreTokenizer, CutsAsARegularExpressionEngineDoes) {
  for (const Json& test : read_json_file(fixture("qwen_pre_tokens.json"))) {
    std::string text;
    for (const Json& piece : test) text += piece.get<std::string>();
    std::vector<std::string> pieces;
    for (const std::string_view piece : pieces_of(text, qwen_piece_end)) pieces.emplace_back(piece);
    EXPECT_EQ(pieces, test.get<std::vector<std::string>>());
  }
}

TEST(Nfc, EqualsAnotherImplementation) {
  size_t changed = 0;
  for (const Json& test : read_json_file(fixture("nfc.json"))) {
    std::string storage;
    const auto text = test[0].get<std::string>();
    EXPECT_EQ(to_nfc(text, storage), test[1].get<std::string>()) << test[0];
    changed += test[0] == test[1] ? 0 : 1;
  }
  EXPECT_GT(changed, 300U);
}

TEST(Nfc, ALongRunOfMarksIsNotQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";  // U+0301, U+0323
  std::string storage;
  const std::string_view made = to_nfc(text, storage);
  EXPECT_TRUE(made.starts_with("\xE1\xBA\xA1\xCC\xA3"));  // U+1EA1, and the marks below come first
  EXPECT_TRUE(made.ends_with("\xCC\x81"));
}

// The definition: the pair that stands first in the list is joined, the leftmost first, until none is left.
std::vector<std::string> slow_merges(const text_test::ToyQwen& toy, std::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    size_t best = toy.merges.size();
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = std::ranges::find(toy.merges, std::pair(parts[i], parts[i + 1]));
      const auto rank = static_cast<size_t>(found - toy.merges.begin());
      if (rank >= best) continue;
      best = rank;
      at = i;
    }
    if (best == toy.merges.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(QwenTokenizer, MergesOfAnyLengthFollowTheDefinition) {
  for (const bool arrays : {true, false}) {
    const text_test::ToyQwen toy = text_test::toy_qwen(400);
    const Tokenizer tokenizer = make_qwen_tokenizer(
        {.tokenizer = text_test::qwen_json(toy, arrays).dump(), .tokenizer_config = {}, .config = {}, .generation_config = {}});
    text_test::Numbers numbers(3);
    for (int round = 0; round < 400; ++round) {
      std::string word;
      const uint64_t length = 1 + numbers.below(round % 10 == 0 ? 200 : 30);
      for (uint64_t i = 0; i < length; ++i) word += static_cast<char>('a' + numbers.below(8));
      std::vector<std::string> parts;
      for (const TokenId id : tokenizer.encode(word)) {
        parts.emplace_back(tokenizer.token_bytes(id));
        EXPECT_EQ(parts.back(), toy.tokens[static_cast<size_t>(id)]);
      }
      ASSERT_EQ(parts, slow_merges(toy, word)) << word;
    }
  }
}

// A token that no merge makes is never written, even where a piece is that token (ignore_merges false).
TEST(QwenTokenizer, AWholePieceIsNoShortcut) {
  text_test::ToyQwen toy = text_test::toy_qwen(300);
  toy.tokens.emplace_back("xyz");
  const Tokenizer tokenizer = make_qwen_tokenizer(
      {.tokenizer = text_test::qwen_json(toy).dump(), .tokenizer_config = {}, .config = {}, .generation_config = {}});
  EXPECT_EQ(tokenizer.encode("xyz").size(), 3U);
  EXPECT_EQ(tokenizer.token_bytes(300), "xyz");
}

std::string refusal(const QwenFiles& files, ErrorKind kind) {
  try {
    (void)make_qwen_tokenizer(files, "folder");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(QwenTokenizer, RefusesOtherKindsOfTokenizersByName) {
  const auto refused = [](const std::string& pointer, const Json& value) {
    Json json = text_test::qwen_json(text_test::toy_qwen(300));
    json[Json::json_pointer(pointer)] = value;
    return refusal({.tokenizer = json.dump(), .tokenizer_config = {}, .config = {}, .generation_config = {}},
                   ErrorKind::unsupported);
  };
  EXPECT_THAT(refused("/normalizer/type", "NFKC"),
              HasSubstr("[folder/tokenizer.json] normalizer.type: wanted \"NFC\", found \"NFKC\""));
  EXPECT_THAT(refused("/pre_tokenizer/type", "Metaspace"), HasSubstr("pre_tokenizer.type: wanted \"Sequence\""));
  EXPECT_THAT(refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\s+"), HasSubstr("pattern: wanted (?i:'s"));
  EXPECT_THAT(refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed"), HasSubstr("behavior: wanted \"Isolated\""));
  EXPECT_THAT(refused("/pre_tokenizer/pretokenizers/1/use_regex", true), HasSubstr("use_regex: wanted false, found true"));
  EXPECT_THAT(refused("/pre_tokenizer/pretokenizers", Json::array()), HasSubstr("found 0 steps"));
  EXPECT_THAT(refused("/post_processor", {{"type", "TemplateProcessing"}}), HasSubstr("post_processor.type"));
  EXPECT_THAT(refused("/decoder/type", "Fuse"), HasSubstr("decoder.type: wanted \"ByteLevel\""));
  EXPECT_THAT(refused("/model/type", "Unigram"), HasSubstr("model.type: wanted \"BPE\", found \"Unigram\""));
  EXPECT_THAT(refused("/model/ignore_merges", true), HasSubstr("model.ignore_merges: wanted false, found true"));
  EXPECT_THAT(refused("/model/unk_token", "<unk>"), HasSubstr("model.unk_token: wanted null"));
  EXPECT_THAT(refused("/added_tokens/1/lstrip", true), HasSubstr("added_tokens[1].lstrip: wanted false"));
  EXPECT_THAT(refused("/truncation", {{"max_length", 5}}), HasSubstr("truncation: wanted null"));
}

TEST(QwenTokenizer, RefusesBrokenFilesByPlace) {
  const auto refused = [](const std::function<void(Json&)>& change) {
    Json json = text_test::qwen_json(text_test::toy_qwen(300));
    change(json);
    return refusal({.tokenizer = json.dump(), .tokenizer_config = {}, .config = {}, .generation_config = {}},
                   ErrorKind::bad_checkpoint);
  };
  for (const char* key : {"normalizer", "pre_tokenizer", "decoder", "model", "added_tokens"})
    EXPECT_THAT(refused([&](Json& j) { j.erase(key); }), HasSubstr(fmt::format("{}: wanted a value, found no such key", key)));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"][text_test::byte_level("a")] = 300; }),
              HasSubstr("found id 300 among 300"));
  EXPECT_THAT(refused([](Json& j) {
                j["model"]["vocab"][text_test::byte_level("a")] = j["model"]["vocab"][text_test::byte_level("b")];
              }),
              HasSubstr("wanted each id once"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"]["x y"] = 300; }),
              HasSubstr("wanted a token in the byte alphabet, found 'x y'"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"]["zzz"] = "1"; }), HasSubstr("wanted an id for 'zzz', found \"1\""));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"] = Json::object(); }), HasSubstr("no entry for byte 0x00"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back("zz zz"); }),
              HasSubstr("wanted two tokens that together are one"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back("ab"); }), HasSubstr("]: wanted two tokens, found \"ab\""));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back({"a", "b", "c"}); }), HasSubstr("wanted two tokens, found"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][3]); }),
              HasSubstr("wanted each pair once"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][2]["id"] = 400; }), HasSubstr("without a gap above the 300 ids"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][2]["id"] = 5; }), HasSubstr("found id 5 for '<|im_end|>'"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][2]["content"] = ""; }),
              HasSubstr("added_tokens[2]: wanted an id, a name"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][2]["content"] = "<think>"; }),
              HasSubstr("found '<think>' for ids 302 and 308"));
  for (const auto& [name, special] : text_test::qwen_added()) {
    if (name == "<|box_start|>") continue;
    EXPECT_THAT(refused([&](Json& j) {
                  for (Json& token : j["added_tokens"]) {
                    if (token["content"] == name) token["content"] = "<other>";
                  }
                }),
                HasSubstr(fmt::format("wanted the control token '{}'", name)));
  }
  const QwenFiles good = text_test::toy_qwen_files(300);
  const auto with = [&](auto change) {
    QwenFiles files = good;
    change(files);
    return refusal(files, ErrorKind::bad_checkpoint);
  };
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer = "{"; }), HasSubstr("[folder/tokenizer.json] wanted a JSON tokenizer"));
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer = "[]"; }), HasSubstr("wanted an object, found []"));
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer.resize(f.tokenizer.size() / 2); }), HasSubstr("wanted a JSON tokenizer"));
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer = std::string(200, '[') + std::string(200, ']'); }),
              HasSubstr("nested at most 128"));
  EXPECT_THAT(with([](QwenFiles& f) { f.config = R"({"eos_token_id": 310})"; }),
              HasSubstr("[folder/config.json] eos_token_id"));
  EXPECT_THAT(with([](QwenFiles& f) { f.generation_config = R"({"eos_token_id": [302, 308]})"; }),
              HasSubstr("found id 308 as '<think>' and as end token"));
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer_config = R"({"eos_token": "<|nothing|>"})"; }),
              HasSubstr("[folder/tokenizer_config.json] eos_token: wanted the name of an added token"));
  EXPECT_THAT(with([](QwenFiles& f) { f.tokenizer_config = R"({"added_tokens_decoder": {"301": {"content": "x"}}})"; }),
              HasSubstr("added_tokens_decoder.301: wanted '<|im_start|>' as in tokenizer.json, found 'x'"));
}

TEST(QwenTokenizer, TokenizerConfigAddsTokensAndAnEnd) {
  QwenFiles files = text_test::toy_qwen_files(300);
  files.tokenizer_config =
      R"({"added_tokens_decoder": {"310": {"content": "<more>", "special": false}}, "eos_token": {"content": "<more>"}})";
  const Tokenizer tokenizer = make_qwen_tokenizer(files);
  EXPECT_EQ(tokenizer.vocab_size(), 311);
  EXPECT_THAT(tokenizer.encode("<more>", true), ElementsAre(310));
  EXPECT_THAT(tokenizer.stop_ids(), ElementsAre(300, 302, 310));
}

TEST(QwenTokenizer, NormalisesEachRunOfText) {
  const std::string composed = "caf\xC3\xA9";
  const std::string decomposed = "cafe\xCC\x81";
  EXPECT_EQ(small_qwen().encode(decomposed), small_qwen().encode(composed));
  EXPECT_EQ(small_qwen().decode(small_qwen().encode(decomposed)), composed);
}

}  // namespace
}  // namespace weft
