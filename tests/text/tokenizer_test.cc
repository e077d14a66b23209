#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/kimi_tokenizer.h"
#include "text/pre_tokenizer.h"
#include "text/rank_table.h"
#include "text/text_fixture.h"
#include "text/toy_vocabulary.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using text_test::base64;
using text_test::ids_of;
using text_test::mini;
using text_test::mini_files;
using text_test::tokenizer_cases;

std::string sha256_of_ids(const std::vector<TokenId>& ids) {
  std::string joined;
  for (const TokenId id : ids) joined += fmt::format("{}{}", joined.empty() ? "" : ",", id);
  unsigned char digest[32];
  unsigned int length = 0;
  EVP_Digest(joined.data(), joined.size(), digest, &length, EVP_sha256(), nullptr);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Lines of a vocabulary: the 256 single bytes, those of `first` before all others, then `more`.
std::string vocabulary(std::string_view first, const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (const char c : first) tokens.emplace_back(1, c);
  for (int byte = 0; byte < 256; ++byte) {
    if (first.find(static_cast<char>(byte)) == first.npos) tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.insert(tokens.end(), more.begin(), more.end());
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) file += fmt::format("{} {}\n", base64(tokens[i]), i);
  return file;
}

template <class Body>
std::string message_of(Body&& body, ErrorKind kind = ErrorKind::bad_checkpoint) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(KimiTokenizer, PiecesAndIdsOfAllCases) {
  ASSERT_GE(tokenizer_cases()["cases"].size(), 233u);
  for (const Json& test : tokenizer_cases()["cases"]) {
    const auto text = test["text"].get<std::string>();
    std::vector<std::string> pieces;
    for (const std::string_view piece : pieces_of(text, kimi_piece_end)) pieces.emplace_back(piece);
    EXPECT_EQ(pieces, test["pieces"].get<std::vector<std::string>>()) << text;
    EXPECT_EQ(mini().encode(text), ids_of(test["ids"])) << text;
    EXPECT_EQ(mini().decode_bytes(mini().encode(text)), text);
  }
}

TEST(KimiTokenizer, TrustedTextMakesControlTokens) {
  for (const Json& test : tokenizer_cases()["trusted"]) {
    const auto text = test["text"].get<std::string>();
    EXPECT_EQ(mini().encode(text, true), ids_of(test["ids"])) << text;
    EXPECT_EQ(mini().decode(mini().encode(text, true), ControlText::all), text);
  }
}

TEST(KimiTokenizer, DecodesAllCases) {
  for (const Json& test : tokenizer_cases()["decode"]) {
    const auto ids = ids_of(test["ids"]);
    const bool skip = test.value("skip_special", false);
    EXPECT_EQ(mini().decode(ids, skip ? ControlText::unflagged : ControlText::all), test["text"].get<std::string>())
        << test["name"];
    // Streamed id by id.
    if (skip) continue;
    Utf8Decoder decoder;
    std::string streamed;
    for (const TokenId id : ids) decoder.feed(mini().token_bytes(id), streamed);
    decoder.flush(streamed);
    EXPECT_EQ(streamed, test["text"].get<std::string>()) << test["name"];
  }
}

TEST(KimiTokenizer, LongTextsAreCutAsTheReferenceCutsThem) {
  for (const Json& test : tokenizer_cases()["long"]) {
    std::string text;
    for (int i = 0; i < test["times"].get<int>(); ++i) text += test["unit"].get<std::string>();
    const auto ids = mini().encode(text);
    EXPECT_EQ(ids.size(), test["count"].get<size_t>()) << test["unit"];
    EXPECT_EQ(sha256_of_ids(ids), test["sha256"].get<std::string>()) << test["unit"];
    EXPECT_EQ(mini().decode_bytes(ids), text);
  }
}

TEST(KimiTokenizer, SlicesAtTheCharactersThatTheReferenceNames) {
  const auto lengths = [](const std::string& text) {
    std::vector<size_t> sizes;
    for (const std::string_view slice : kimi_slices(text)) sizes.push_back(slice.size());
    return sizes;
  };
  EXPECT_THAT(lengths(std::string(25'000, 'x')), ElementsAre(25'000));
  EXPECT_THAT(lengths(std::string(25'001, 'x')), ElementsAre(25'000, 1));
  EXPECT_THAT(lengths(std::string(25'000, 'x') + std::string(25'001, ' ')), ElementsAre(50'000, 1));
  EXPECT_THAT(lengths(std::string(50'001, ' ')), ElementsAre(25'000, 25'000, 1));
  std::string emoji;
  for (int i = 0; i < 25'001; ++i) emoji += "\xF0\x9F\x98\x80";
  EXPECT_THAT(lengths(emoji), ElementsAre(100'000, 4));
  std::string words;
  for (int i = 0; i < 200'001; ++i) words += "x ";
  EXPECT_THAT(lengths(words), ElementsAre(400'000, 2));
  // A run that a slice cuts begins anew.
  EXPECT_THAT(lengths(words.substr(0, 380'000) + std::string(45'000, 'x')), ElementsAre(400'000, 25'000));
  EXPECT_THAT(lengths(words.substr(0, 380'000) + std::string(45'001, 'x')), ElementsAre(400'000, 25'000, 1));
}

TEST(KimiTokenizer, MergesByRankLeftmostFirst) {
  // prompt_and_api.md 1.4: a=0, b=1, c=2, ab=3, bc=4, abc=5 with the single bytes moved behind.
  std::string file = vocabulary("abc", {"ab", "bc", "abc"});
  const RankTable ranks = RankTable::parse(file, "toy");
  const TokenId ab = ranks.find("ab");
  const TokenId bc = ranks.find("bc");
  const TokenId abc = ranks.find("abc");
  EXPECT_LT(ab, bc);
  const auto encode = [&](std::string_view piece) {
    std::vector<TokenId> ids;
    RankTable::Scratch scratch;
    ranks.encode_piece(piece, ids, scratch);
    return ids;
  };
  EXPECT_THAT(encode("abc"), ElementsAre(abc));
  EXPECT_THAT(encode("babc"), ElementsAre(1, abc));
  EXPECT_THAT(encode("bcab"), ElementsAre(bc, ab));
}

// The merge rule by its definition, slowly.
std::vector<TokenId> slow_bpe(const RankTable& ranks, std::string_view piece) {
  if (const TokenId whole = ranks.find(piece); whole >= 0) return {whole};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    TokenId lowest = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const TokenId rank = ranks.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (lowest < 0 || rank < lowest)) {
        lowest = rank;
        at = i;
      }
    }
    if (lowest < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) ids.push_back(ranks.find(part));
  return ids;
}

TEST(KimiTokenizer, MergesOfAnyLengthFollowTheDefinition) {
  uint64_t state = 7;
  const auto next = [&state](uint64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % bound;
  };
  std::set<std::string> seen;
  std::vector<std::string> more;
  while (more.size() < 300) {
    std::string token;
    const size_t length = 2 + next(6);
    for (size_t i = 0; i < length; ++i) token += static_cast<char>('a' + next(3));
    if (seen.insert(token).second) more.push_back(token);
  }
  const RankTable ranks = RankTable::parse(vocabulary("", more), "toy");
  for (int round = 0; round < 400; ++round) {
    std::string piece;
    const size_t length = 1 + static_cast<size_t>(round) % 150;  // both sides of the length at which the heap takes over
    for (size_t i = 0; i < length; ++i) piece += static_cast<char>('a' + next(3));
    std::vector<TokenId> ids;
    RankTable::Scratch scratch;
    ranks.encode_piece(piece, ids, scratch);
    ASSERT_EQ(ids, slow_bpe(ranks, piece)) << piece;
  }
}

TEST(KimiTokenizer, RefusesBrokenRankFiles) {
  const std::string good = vocabulary("", {"ab"});
  EXPECT_EQ(RankTable::parse(good, "f").size(), 257);
  std::string crlf;
  for (const char c : good) crlf += c == '\n' ? "\r\n\r\n" : std::string(1, c);
  EXPECT_EQ(RankTable::parse(crlf, "f").size(), 257);
  const auto refused = [&](const std::string& file) { return message_of([&] { (void)RankTable::parse(file, "f"); }); };
  EXPECT_THAT(refused(good + "YWI= 257\n"), HasSubstr("line 258: wanted each byte string once"));
  EXPECT_THAT(refused(good + "YWJj 256\n"), HasSubstr("line 258: wanted each rank once, found rank 256"));
  EXPECT_THAT(refused(good + "YWJj 258\n\n\n"), HasSubstr("no rank 257"));
  EXPECT_THAT(refused(good + "YWJj 9999999\n"), HasSubstr("contiguous from 0, found rank 9999999"));
  EXPECT_THAT(refused(good.substr(good.find('\n') + 1)), HasSubstr("no rank 0"));
  EXPECT_THAT(refused("YWI= 0\n"), HasSubstr("all 256 single bytes"));
  EXPECT_THAT(refused(""), HasSubstr("all 256 single bytes"));
  EXPECT_THAT(refused(good + "YWJj"), HasSubstr("found no space"));
  EXPECT_THAT(refused(good + " 257"), HasSubstr("wanted base64"));
  EXPECT_THAT(refused(good + "YWJ 257"), HasSubstr("wanted base64"));
  EXPECT_THAT(refused(good + "YW=j 257"), HasSubstr("wanted base64"));
  EXPECT_THAT(refused(good + "YW-j 257"), HasSubstr("wanted base64"));
  EXPECT_THAT(refused(good + "YR== 257"), HasSubstr("wanted base64"));  // bits beyond the last byte
  EXPECT_THAT(refused(good + "YWJj -1"), HasSubstr("wanted a decimal rank"));
  EXPECT_THAT(refused(good + "YWJj 257 "), HasSubstr("wanted a decimal rank"));
  EXPECT_THAT(refused(good + "YWJj 99999999999999999999"), HasSubstr("wanted a decimal rank"));
}

TEST(KimiTokenizer, RefusesBrokenControlTokens) {
  const auto refused = [](const std::function<void(Json&)>& change) {
    auto files = mini_files();
    Json config = parse_json(files.tokenizer_config, "test");
    change(config);
    files.tokenizer_config = config.dump();
    return message_of([&] { (void)make_kimi_tokenizer(files, "folder"); });
  };
  for (const char* marker : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}) {
    EXPECT_THAT(refused([&](Json& config) {
                  for (auto& token : config["added_tokens_decoder"]) {
                    if (token["content"] == marker) token["content"] = "<|other|>";
                  }
                }),
                HasSubstr(fmt::format("wanted the control token '{}'", marker)));
  }
  EXPECT_THAT(refused([](Json& config) { config.erase("added_tokens_decoder"); }), HasSubstr("'added_tokens_decoder'"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["17"] = {{"content", "x"}}; }),
              HasSubstr("5888 to 6143"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["6144"] = {{"content", "x"}}; }),
              HasSubstr("found 6144"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["x"] = {{"content", "x"}}; }), HasSubstr("found 'x'"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["5900"] = {{"content", ""}}; }), HasSubstr("content"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["5900"] = {{"content", "<|sep|>"}}; }),
              HasSubstr("found '<|sep|>' for ids 5893 and 5900"));
  EXPECT_THAT(refused([](Json& config) { config["added_tokens_decoder"]["05891"] = {{"content", "x"}}; }),
              HasSubstr("each id once"));
  const auto ends = [](const std::string& json) {
    auto files = mini_files();
    files.generation_config = json;
    return message_of([&] { (void)make_kimi_tokenizer(files, "folder"); });
  };
  EXPECT_THAT(ends(R"({"eos_token_id": 6144})"), HasSubstr("wanted an id below 6144, found 6144"));
  EXPECT_THAT(ends(R"({"eos_token_id": "x"})"), HasSubstr("found \"x\""));
  EXPECT_THAT(ends(R"({"eos_token_id": [5890, 5893]})"), HasSubstr("found id 5893 as '<|sep|>' and as end token"));
  EXPECT_THAT(message_of([] { (void)load_kimi_tokenizer("/nonexistent"); }), HasSubstr("/nonexistent/tiktoken.model"));
}

TEST(KimiTokenizer, ReadsMarkerAndEndIdsFromTheFiles) {
  EXPECT_EQ(mini().vocab_size(), 6144);
  EXPECT_EQ(mini().rank_count(), 5888);
  EXPECT_THAT(mini().stop_ids(), ElementsAre(5889, 5890));
  EXPECT_EQ(mini().control_id("<|open|>"), 5891);
  EXPECT_EQ(mini().control_id("<|media_pad|>"), 5909);
  const Tokenizer& moved = text_test::shifted(100);
  EXPECT_EQ(moved.control_id("<|open|>"), 5991);
  EXPECT_THAT(moved.stop_ids(), ElementsAre(5989, 5990));
  EXPECT_TRUE(moved.is_stop(5990));
  EXPECT_FALSE(moved.is_stop(5890));
  EXPECT_EQ(moved.token_bytes(5891), "<|reserved_token_5891|>");
  EXPECT_THAT(moved.encode(Segment{"<|open|>", true}), ElementsAre(5991));
  // End ids of config.json, of the text tower in it and of generation_config.json together.
  auto files = mini_files();
  files.config = R"({"eos_token_id": 5, "text_config": {"eos_token_id": [9, 7]}})";
  files.generation_config = R"({"eos_token_id": 7})";
  const Tokenizer more = make_kimi_tokenizer(files);
  EXPECT_THAT(more.stop_ids(), ElementsAre(5, 7, 9, 5889, 5890));
}

TEST(KimiTokenizer, TextCannotSpellAControlToken) {
  for (TokenId id = mini().rank_count(); id < mini().vocab_size(); ++id) {
    const std::string name(mini().token_bytes(id));
    for (const TokenId found : mini().encode(fmt::format("a{}b", name))) EXPECT_LT(found, mini().rank_count()) << name;
    EXPECT_THAT(mini().encode(name, true), ElementsAre(id));
    EXPECT_EQ(mini().control_id(name), id);
  }
  EXPECT_EQ(mini().control_id("<|open"), -1);
  EXPECT_EQ(mini().control_id("message"), -1);
  EXPECT_THAT(message_of([] { (void)mini().encode(Segment{"message", true}); }, ErrorKind::internal), HasSubstr("'message'"));
}

TEST(KimiTokenizer, TheLongestControlTokenMatches) {
  auto files = mini_files();
  Json config = parse_json(files.tokenizer_config, "test");
  config["added_tokens_decoder"]["5900"] = {{"content", "<|sep|>more"}};
  files.tokenizer_config = config.dump();
  const Tokenizer tokenizer = make_kimi_tokenizer(files);
  EXPECT_THAT(tokenizer.encode("<|sep|>more", true), ElementsAre(5900));
  EXPECT_EQ(tokenizer.encode("<|sep|>mor", true)[0], tokenizer.control_id("<|sep|>"));
}

TEST(KimiTokenizer, SegmentsAreEncodedEachOnItsOwn) {
  const std::vector<Segment> cut{{"Hel", false}, {"lo", false}};
  auto ids = mini().encode("Hel");
  for (const TokenId id : mini().encode("lo")) ids.push_back(id);
  EXPECT_EQ(mini().encode(cut), ids);
  EXPECT_NE(mini().encode(cut), mini().encode("Hello"));
}

TEST(KimiTokenizer, RefusesIllFormedTextAndForeignIds) {
  EXPECT_THAT(message_of([] { (void)mini().encode("ab\xC3"); }, ErrorKind::bad_input), HasSubstr("byte 0xc3 at offset 2"));
  EXPECT_THAT(message_of([] { (void)mini().encode("\xED\xA0\x80"); }, ErrorKind::bad_input), HasSubstr("offset 0"));
  EXPECT_THAT(message_of([] { (void)mini().token_bytes(6144); }, ErrorKind::bad_input), HasSubstr("[0, 6144), found 6144"));
  EXPECT_THAT(message_of([] { (void)mini().token_bytes(-1); }, ErrorKind::bad_input), HasSubstr("found -1"));
}

}  // namespace
}  // namespace weft
