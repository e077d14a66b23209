// The control tokens of a Kimi checkpoint: the 256 ids directly above the ranks (prompt_and_api.md 1.2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/rank_table.h"

namespace weft {

inline constexpr TokenId kControlTokenCount = 256;

class ControlTokens {
 public:
  // `config` is tokenizer_config.json. Ids that added_tokens_decoder does not name are <|reserved_token_{id}|>.
  // Throws Error(bad_checkpoint) naming `place`.
  ControlTokens(const Json& config, TokenId rank_count, std::string_view place);

  [[nodiscard]] std::string_view name(TokenId id) const { return tokens_[static_cast<size_t>(id - first_)].name; }
  // The `special` flag; true for ids without a name of their own.
  [[nodiscard]] bool special(TokenId id) const { return tokens_[static_cast<size_t>(id - first_)].special; }
  // -1 when no control token has that name.
  [[nodiscard]] TokenId find(std::string_view name) const;
  // The longest spelling at the front of `text`: its id and byte length, or {-1, 0}. Time is bounded by the longest spelling.
  [[nodiscard]] std::pair<TokenId, size_t> match(std::string_view text) const;

 private:
  struct Token {
    std::string name;
    bool special = true;
  };
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    TokenId id = -1;
  };

  TokenId first_;
  std::vector<Token> tokens_;  // [kControlTokenCount]
  std::vector<Node> trie_;     // [0] is the root
};

}  // namespace weft
