// The tokenizer of a Kimi checkpoint: tiktoken.model plus the control tokens of tokenizer_config.json (prompt_and_api.md 1.1 to
// 1.6).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace weft {

inline constexpr TokenId kKimiControlTokens = 256;

// The contents of the files; the last two may be absent.
struct KimiFiles {
  std::string tiktoken_model;
  std::string tokenizer_config;
  std::optional<std::string> config;             // config.json: end token ids
  std::optional<std::string> generation_config;  // generation_config.json: end token ids
};

// Reads the files of a checkpoint folder. End ids are <|end_of_msg|>, [EOS] and those of the JSON files. Throws
// Error(bad_checkpoint) naming file and fault: what RankTable::parse refuses; a control token outside the 256 ids above the
// ranks; two control tokens of one name; a structural marker missing; two roles with one id; an end id outside the vocabulary.
[[nodiscard]] Tokenizer load_kimi_tokenizer(const std::filesystem::path& folder);
// The same from memory. `place` stands for the folder in messages.
[[nodiscard]] Tokenizer make_kimi_tokenizer(const KimiFiles& files, std::string_view place = "tokenizer");

}  // namespace weft
