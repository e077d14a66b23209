// A tokenizer.json made on the spot: single bytes and merges in an order that is not that of the ids, with the added tokens of
// Qwen.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "text/pre_tokenizer.h"
#include "text/qwen_tokenizer.h"
#include "text/toy_vocabulary.h"

namespace weft::text_test {

inline const std::vector<std::pair<std::string, bool>>& qwen_added() {
  static const std::vector<std::pair<std::string, bool>> added{
      {"<|endoftext|>", true}, {"<|im_start|>", true},  {"<|im_end|>", true},       {"<|box_start|>", true},
      {"<tool_call>", false},  {"</tool_call>", false}, {"<tool_response>", false}, {"</tool_response>", false},
      {"<think>", false},      {"</think>", false}};
  return added;
}

// A byte string in the alphabet of byte-level vocabularies, spelled out anew here.
inline std::string byte_level(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const auto own = [](int b) { return (b > 32 && b < 127) || (b > 160 && b < 173) || b > 173; };
    uint32_t code = byte;
    if (!own(byte)) {
      code = 256;
      for (int b = 0; b < byte; ++b) code += own(b) ? 0 : 1;
    }
    append_utf8(out, code);
  }
  return out;
}

struct ToyQwen {
  std::vector<std::string> tokens;                          // by id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

// The merges join earlier tokens; some tokens come from two pairs. Words of the letters a to h, spaces, quotes and braces.
inline ToyQwen toy_qwen(size_t ranks, uint64_t seed = 7) {
  Numbers numbers(seed);
  ToyQwen made;
  for (int byte = 0; byte < 256; ++byte) made.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::string> pool{" ", "a", "b", "c", "d", "e", "f", "g", "h", "\"", ":", "{", "}", "\n"};
  std::map<std::string, bool> known;
  std::map<std::pair<std::string, std::string>, bool> pairs;
  while (made.tokens.size() < ranks) {
    const std::pair pair{pool[numbers.below(1 + numbers.below(pool.size()))],
                         pool[numbers.below(1 + numbers.below(pool.size()))]};
    const std::string whole = pair.first + pair.second;
    if (whole.size() > 12 || !pairs.emplace(pair, true).second) continue;
    made.merges.push_back(pair);
    if (!known.emplace(whole, true).second) continue;
    pool.push_back(whole);
    made.tokens.push_back(whole);
  }
  for (size_t i = made.tokens.size() - 1; i > 0; --i) std::swap(made.tokens[i], made.tokens[numbers.below(i + 1)]);
  return made;
}

inline Json qwen_json(const ToyQwen& toy, bool merges_as_arrays = true) {
  Json json =
      Json::parse(R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
              "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {}, "merges": []}})");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kQwenPattern;
  for (size_t id = 0; id < toy.tokens.size(); ++id) json["model"]["vocab"][byte_level(toy.tokens[id])] = id;
  for (const auto& [left, right] : toy.merges) {
    const std::string a = byte_level(left);
    const std::string b = byte_level(right);
    json["model"]["merges"].push_back(merges_as_arrays ? Json::array({a, b}) : Json(a + " " + b));
  }
  for (const auto& [name, special] : qwen_added())
    json["added_tokens"].push_back({{"id", toy.tokens.size() + json["added_tokens"].size()},
                                    {"content", name},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", special}});
  return json;
}

inline QwenFiles toy_qwen_files(size_t ranks = 420) {
  return {.tokenizer = qwen_json(toy_qwen(ranks)).dump(), .tokenizer_config = {}, .config = {}, .generation_config = {}};
}

inline const Tokenizer& small_qwen() {
  static const Tokenizer tokenizer = make_qwen_tokenizer(toy_qwen_files());
  return tokenizer;
}

}  // namespace weft::text_test
