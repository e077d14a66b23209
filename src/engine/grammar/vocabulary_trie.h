// The byte strings of a vocabulary as a trie, laid out so that a walk over all tokens reads memory forwards.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace weft::grammar {

class VocabularyTrie {
 public:
  // In preorder: the children of a node follow it, and `end` is the first node behind them.
  struct Node {
    uint32_t end = 0;
    TokenId token = -1;  // whose bytes end here, or -1
    uint16_t depth = 0;  // bytes from the root to here, this node's included; >= 1
    uint8_t byte = 0;
  };

  // The ranks of the tokenizer; control tokens have no bytes that text can hold.
  explicit VocabularyTrie(const Tokenizer& tokenizer);

  [[nodiscard]] std::span<const Node> nodes() const { return nodes_; }
  [[nodiscard]] int64_t vocabulary() const { return vocabulary_; }  // ids, control tokens included
  [[nodiscard]] size_t longest() const { return longest_; }         // bytes of the longest token

  // fewest[i]: the fewest tokens that spell text[i..]; one entry more than the text has bytes. Every byte is a token, so there
  // always are some.
  [[nodiscard]] std::vector<int32_t> fewest_tokens(std::string_view text) const;
  // Those tokens for the whole text.
  [[nodiscard]] std::vector<TokenId> spell(std::string_view text) const;

 private:
  // Calls body(token, length) for each token that `text` begins with, the shortest first.
  template <class Body>
  void for_each_prefix(std::string_view text, const Body& body) const;

  std::vector<Node> nodes_;
  std::vector<uint32_t> roots_;  // [256] the node of the one-byte path, or UINT32_MAX
  int64_t vocabulary_ = 0;
  size_t longest_ = 0;
};

}  // namespace weft::grammar
