#include "engine/grammar/vocabulary_trie.h"

#include <algorithm>
#include <limits>

namespace weft::grammar {

VocabularyTrie::VocabularyTrie(const Tokenizer& tokenizer)
    : roots_(256, std::numeric_limits<uint32_t>::max()), vocabulary_(tokenizer.vocab_size()) {
  std::vector<TokenId> order(static_cast<size_t>(tokenizer.rank_count()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
  std::ranges::sort(order, {}, [&](TokenId id) { return tokenizer.token_bytes(id); });
  std::vector<uint32_t> path;  // nodes from the root to the last token
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (const TokenId id : order) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    longest_ = std::max(longest_, bytes.size());
    const auto shared = static_cast<size_t>(std::ranges::mismatch(last, bytes).in1 - last.begin());
    close(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      const auto byte = static_cast<uint8_t>(bytes[i]);
      if (i == 0) roots_[byte] = static_cast<uint32_t>(nodes_.size());
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.end = 0, .token = -1, .depth = static_cast<uint16_t>(i + 1), .byte = byte});
    }
    nodes_.back().token = id;
    last = bytes;
  }
  close(0);
}

template <class Body>
void VocabularyTrie::for_each_prefix(std::string_view text, const Body& body) const {
  uint32_t at = roots_[static_cast<uint8_t>(text.front())];
  for (size_t length = 1; at != std::numeric_limits<uint32_t>::max(); ++length) {
    if (nodes_[at].token >= 0) body(nodes_[at].token, length);
    if (length == text.size()) return;
    const uint32_t end = nodes_[at].end;
    uint32_t child = at + 1;
    while (child < end && nodes_[child].byte != static_cast<uint8_t>(text[length])) child = nodes_[child].end;
    if (child >= end) return;
    at = child;
  }
}

std::vector<int32_t> VocabularyTrie::fewest_tokens(std::string_view text) const {
  std::vector<int32_t> fewest(text.size() + 1, 0);
  for (size_t i = text.size(); i-- > 0;) {
    fewest[i] = std::numeric_limits<int32_t>::max();
    for_each_prefix(text.substr(i), [&](TokenId, size_t length) { fewest[i] = std::min(fewest[i], fewest[i + length] + 1); });
  }
  return fewest;
}

std::vector<TokenId> VocabularyTrie::spell(std::string_view text) const {
  const std::vector<int32_t> fewest = fewest_tokens(text);
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < text.size();) {
    TokenId chosen = -1;
    size_t step = 1;
    for_each_prefix(text.substr(i), [&](TokenId token, size_t length) {
      if (fewest[i + length] + 1 != fewest[i]) return;
      chosen = token;  // the longest of them
      step = length;
    });
    tokens.push_back(chosen);
    i += step;
  }
  return tokens;
}

}  // namespace weft::grammar
