// The tokenizer of a Qwen checkpoint: tokenizer.json (prompt_and_api.md 1.8).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace weft {

// The contents of the files; all but the first may be absent.
struct QwenFiles {
  std::string tokenizer;                         // tokenizer.json
  std::optional<std::string> tokenizer_config;   // tokenizer_config.json: more added tokens, the end token's name
  std::optional<std::string> config;             // config.json: end token ids
  std::optional<std::string> generation_config;  // generation_config.json: end token ids
};

// Reads the files of a checkpoint folder. End ids are <|im_end|>, <|endoftext|> and those of the JSON files.
//
// Throws Error(unsupported) naming the field of tokenizer.json for anything but NFC, the pattern of 1.8 and plain byte-level
// BPE: such a file would give other ids. Throws Error(bad_checkpoint) naming file and place for damage: no JSON, a vocabulary
// with gaps, with a token that comes twice or is not spelled in the byte alphabet, or without a single byte; a merge of what is
// no token; added tokens that do not stand without a gap above the vocabulary; a marker missing; two roles with one id; an end
// id outside the vocabulary.
[[nodiscard]] Tokenizer load_qwen_tokenizer(const std::filesystem::path& folder);
// The same from memory. `place` stands for the folder in messages.
[[nodiscard]] Tokenizer make_qwen_tokenizer(const QwenFiles& files, std::string_view place = "tokenizer");

}  // namespace weft
