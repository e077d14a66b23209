// Which tokens may come next under a term.
//
// A state is split into the part that is being written and what follows it. The tokens that stay inside the part are found by
// one walk over the vocabulary and kept by the part alone: the inside of a string has the same tokens wherever the string
// stands. Only the few tokens that reach beyond its end are looked at again for each thing that may follow. Each set of tokens
// is kept apart by how many tokens the text still needs behind it, so that a mask for a budget costs no more than one without.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/grammar/terms.h"

namespace weft::grammar {

// The ids of each marker: `end` may have several, those of the other format have none.
using MarkerTokens = std::array<std::vector<TokenId>, kMarkers>;

class Masks {
 public:
  // Keeps references to both.
  Masks(const VocabularyTrie& trie, Terms& terms, MarkerTokens markers);

  // Sets the bits of the tokens that may come next under `state` and leave it with a need of at most `limit` (the need of
  // what soft() holds does not count). False when there is none. `most` >= limit: what the need may be where nothing is short.
  bool fill(Term state, int64_t limit, int64_t most, std::span<uint32_t> words);
  // Whether the last fill() left a token out that `most` would have let in.
  [[nodiscard]] bool was_cut() const { return cut_; }
  // Forgets what is known of terms that Terms::compact() may have given away.
  void compact();

 private:
  // Tokens of one need; many as bits, few as ids.
  struct Bucket {
    int64_t need = 0;
    std::vector<TokenId> ids;
    std::vector<uint32_t> words;
  };
  using Buckets = std::vector<Bucket>;
  struct Part {
    Buckets buckets;
    std::vector<uint32_t> exits;  // nodes of the trie at which the part may be over, and that have children
    std::array<int64_t, kMarkers> markers{};
  };

  void fill_state(Term state, Term then, int64_t limit);
  void fill_part(Term part, Term then, int64_t limit);
  void fill_marker(size_t marker);
  [[nodiscard]] bool fits(int64_t need, int64_t limit);
  void fill_buckets(const Buckets& buckets, int64_t limit);
  const Part& part_of(Term term);
  const Buckets& beyond(Term term, const Part& part, Term then);
  // Calls token(id, rest) for each token of the nodes [first, last) that `state` takes when it stands above them, and
  // node(index, rest) for each node it reaches.
  template <class OnToken, class OnNode>
  void walk(Term state, uint32_t first, uint32_t last, const OnToken& token, const OnNode& node);
  // Keeps tokens by their need.
  class Sorter;
  [[nodiscard]] static size_t bytes_of(const Buckets& buckets);

  const VocabularyTrie& trie_;
  Terms& terms_;
  MarkerTokens markers_;
  std::unordered_map<Term, Part> parts_;
  std::map<std::pair<Term, Term>, Buckets> beyond_;
  size_t held_ = 0;         // bytes of their tokens
  std::vector<Term> path_;  // the states above a node of the trie, by depth

  // Of one call of fill().
  std::span<uint32_t> words_;
  bool any_ = false;
  bool cut_ = false;
  int64_t short_ = 0;  // by how much the limit is below `most`
  size_t visits_ = 0;
};

}  // namespace weft::grammar
