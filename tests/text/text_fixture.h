// What the tests of text/ share: the k3-mini tokenizer and the cases of other programs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace weft::text_test {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/fixtures/text" / name;
}

inline const Json& tokenizer_cases() {
  static const Json cases = read_json_file(fixture("kimi_mini_cases.json"));
  return cases;
}

inline const Json& xtml_cases() {
  static const Json cases = read_json_file(fixture("xtml_cases.json"));
  return cases;
}

inline std::filesystem::path mini_folder() { return std::filesystem::path(WEFT_SOURCE_DIR) / "models/k3-mini"; }

inline KimiTokenizer::Files mini_files() {
  return {.tiktoken_model = read_text_file(mini_folder() / "tiktoken.model"),
          .tokenizer_config = read_text_file(mini_folder() / "tokenizer_config.json"),
          .config = std::nullopt,
          .generation_config = read_text_file(mini_folder() / "generation_config.json")};
}

inline const KimiTokenizer& mini() {
  static const KimiTokenizer tokenizer = KimiTokenizer::load(mini_folder());
  return tokenizer;
}

// The files of the mini tokenizer with all control tokens moved to other ids of their range.
inline KimiTokenizer::Files shifted_files(int shift) {
  KimiTokenizer::Files files = mini_files();
  const Json config = parse_json(files.tokenizer_config, "tokenizer_config");
  const TokenId first = mini().rank_count();
  Json moved = Json::object();
  for (const auto& [key, value] : config["added_tokens_decoder"].items())
    moved[std::to_string(first + (std::stoi(key) - first + shift) % 256)] = value;
  files.tokenizer_config = Json{{"added_tokens_decoder", moved}}.dump();
  files.generation_config.reset();
  return files;
}

inline const KimiTokenizer& shifted(int shift) {
  static std::map<int, KimiTokenizer> made;
  const auto found = made.find(shift);
  if (found != made.end()) return found->second;
  return made.emplace(shift, KimiTokenizer::from_files(shifted_files(shift))).first->second;
}

inline std::vector<TokenId> ids_of(const Json& list) { return list.get<std::vector<TokenId>>(); }

}  // namespace weft::text_test
