// Which drawn tokens end an answer by themselves, and whether they may be drawn: end tokens of the model, `stop_token_ids`,
// `ignore_eos` and `min_tokens` of a request (prompt_and_api.md 6.2, 7.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace weft {

struct TokenEndOptions {
  std::vector<TokenId> ids;  // further ids that end the answer
  bool ignore = false;       // the model's own end tokens are not drawn, and nothing but the budget and `ids` ends the answer
  int64_t least = 0;         // tokens before the end may come
};

class TokenEnd {
 public:
  TokenEnd(const Tokenizer& tokenizer, TokenEndOptions options) : tokenizer_(&tokenizer), options_(std::move(options)) {}

  // Whether the model may end the answer with the token behind `generated` others.
  [[nodiscard]] bool may_end(int64_t generated) const { return !options_.ignore && generated >= options_.least; }
  // One of TokenEndOptions::ids that may end the answer as the `generated`-th token.
  [[nodiscard]] bool asked(TokenId id, int64_t generated) const;
  // Takes the end tokens out of a mask of allowed ids for the token behind `generated` others, where they may not be drawn and
  // others may.
  void restrict(std::span<uint32_t> mask, int64_t generated) const;

 private:
  const Tokenizer* tokenizer_;
  TokenEndOptions options_;
};

}  // namespace weft
