// The control tokens of a checkpoint: the ids directly above the ordinary tokens (prompt_and_api.md 1.2, 1.8).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/rank_table.h"

namespace weft {

struct NamedToken {
  TokenId id = -1;
  std::string name;
  bool special = true;  // the flag of that name: other programs leave such a token out when they decode
};

// added_tokens_decoder of a tokenizer_config.json, in the order of the file; `config` is the whole file. Throws
// Error(bad_checkpoint) naming `place` for a wrong form, an empty name and an id that comes twice.
[[nodiscard]] std::vector<NamedToken> read_added_tokens(const Json& config, std::string_view place);

class ControlTokens {
 public:
  // `count` ids from `first` on. Those without a name of their own are called <|reserved_token_{id}|> and are special. Throws
  // Error(bad_checkpoint) naming `place` for an id outside these and for a name that comes twice.
  ControlTokens(const std::vector<NamedToken>& named, TokenId first, TokenId count, std::string_view place);

  [[nodiscard]] TokenId count() const { return static_cast<TokenId>(tokens_.size()); }
  [[nodiscard]] std::string_view name(TokenId id) const { return at(id).name; }
  [[nodiscard]] bool special(TokenId id) const { return at(id).special; }
  // It has no name of its own.
  [[nodiscard]] bool reserved(TokenId id) const { return at(id).id < 0; }
  // -1 when no control token has that name.
  [[nodiscard]] TokenId find(std::string_view name) const;
  // The longest spelling at the front of `text`: its id and byte length, or {-1, 0}. Time is bounded by the longest spelling.
  [[nodiscard]] std::pair<TokenId, size_t> match(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    TokenId id = -1;
  };

  [[nodiscard]] const NamedToken& at(TokenId id) const { return tokens_[static_cast<size_t>(id - first_)]; }

  TokenId first_;
  std::vector<NamedToken> tokens_;  // by id - first_; without an id of their own where no file names them
  std::vector<Node> trie_;          // [0] is the root
};

}  // namespace weft
