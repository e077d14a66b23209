// What the tests of text/ share: the k3-mini tokenizer and the cases of other programs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/kimi_tokenizer.h"
#include "text/qwen_tokenizer.h"

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

inline KimiFiles mini_files() {
  return {.tiktoken_model = read_text_file(mini_folder() / "tiktoken.model"),
          .tokenizer_config = read_text_file(mini_folder() / "tokenizer_config.json"),
          .config = std::nullopt,
          .generation_config = read_text_file(mini_folder() / "generation_config.json")};
}

inline const Tokenizer& mini() {
  static const Tokenizer tokenizer = load_kimi_tokenizer(mini_folder());
  return tokenizer;
}

// The files of the mini tokenizer with all control tokens moved to other ids of their range.
inline KimiFiles shifted_files(int shift) {
  KimiFiles files = mini_files();
  const Json config = parse_json(files.tokenizer_config, "tokenizer_config");
  const TokenId first = mini().rank_count();
  Json moved = Json::object();
  for (const auto& [key, value] : config["added_tokens_decoder"].items())
    moved[std::to_string(first + (std::stoi(key) - first + shift) % 256)] = value;
  files.tokenizer_config = Json{{"added_tokens_decoder", moved}}.dump();
  files.generation_config.reset();
  return files;
}

inline const Tokenizer& shifted(int shift) {
  static std::map<int, Tokenizer> made;
  const auto found = made.find(shift);
  if (found != made.end()) return found->second;
  return made.emplace(shift, make_kimi_tokenizer(shifted_files(shift))).first->second;
}

// The tokenizer of Qwen3, whose vocabulary and markers are those of Qwen3-Next.
inline std::filesystem::path qwen_folder() { return std::filesystem::path(WEFT_FIXTURES) / "tokenizer-qwen"; }
inline const Tokenizer& qwen() {
  static const Tokenizer tokenizer = load_qwen_tokenizer(qwen_folder());
  return tokenizer;
}

inline std::vector<TokenId> ids_of(const Json& list) { return list.get<std::vector<TokenId>>(); }

}  // namespace weft::text_test
