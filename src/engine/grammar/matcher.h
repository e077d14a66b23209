// One answer under a grammar: masks of the next token, and the state behind the tokens that were drawn.
//
//     Matcher matcher(vocabulary, std::move(grammar));
//     matcher.fill_mask(words, tokens_left);   // one more token is drawn from these
//     matcher.accept(id);
//
// A text that was begun in time ends in time: a mask allows no token after which the shortest way to the end takes more tokens
// than are left. Where the way is so short that only its own tokens fit, it is written as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/masks.h"
#include "engine/grammar/name_guard.h"
#include "engine/grammar/terms.h"
#include "engine/grammar/vocabulary_trie.h"
#include "text/dialect.h"

namespace weft::grammar {

// The tokens of a checkpoint, made once for all requests. Keeps a reference to the tokenizer.
class Vocabulary {
 public:
  Vocabulary(const Tokenizer& tokenizer, ChatStyle style);

  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] ChatStyle style() const { return style_; }
  [[nodiscard]] const VocabularyTrie& trie() const { return trie_; }
  [[nodiscard]] const MarkerTokens& markers() const { return markers_; }
  // Tokens that are text with a quote in it.
  struct Quoted {
    TokenId id = 0;
    int quotes = 0;
  };
  [[nodiscard]] const std::vector<Quoted>& quoted() const { return quoted_; }
  [[nodiscard]] size_t mask_words() const { return static_cast<size_t>((trie_.vocabulary() + 31) / 32); }

 private:
  const Tokenizer& tokenizer_;
  ChatStyle style_;
  VocabularyTrie trie_;
  MarkerTokens markers_;
  std::vector<Quoted> quoted_;
};

// What compilation gives: sealed terms and where a text begins.
struct Grammar {
  std::unique_ptr<Terms> terms;
  Term start = kNothing;
  bool json_response = false;  // what the response holds is JSON
  bool in_response = false;    // the text begins inside the response
};

class Matcher {
 public:
  // Throws bad_input when no text is in the grammar.
  Matcher(std::shared_ptr<const Vocabulary> vocabulary, Grammar grammar);

  // Tokens of the shortest text from here to the end.
  [[nodiscard]] int64_t tokens_to_end() const;
  // Sets `words` (Vocabulary::mask_words()) to the ids that may come next when `budget` (>= 1) tokens may still be drawn, that
  // one included. Throws internal when the text is at its end, unsupported beyond kMaxReadings.
  void fill_mask(std::span<uint32_t> words, int64_t budget);
  // The token that was drawn from the last mask. Throws internal for one that the grammar does not allow.
  void accept(TokenId id);
  // Whether the budget has kept the text from going on as it might have: some token was left out of the mask from which one was
  // drawn.
  [[nodiscard]] bool was_cut() const { return cut_; }
  // Text that stands there already. Throws bad_input when the grammar does not allow it.
  void accept_text(std::string_view text);

 private:
  [[nodiscard]] std::vector<TokenId> shortest_tokens() const;
  // `text` is the next of the shortest way. Where it would end a name a second time, one more token goes into that name: its
  // place, and the token.
  [[nodiscard]] std::optional<std::pair<size_t, TokenId>> longer_name(std::string_view text) const;
  void move_to(Term state);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<Terms> terms_;
  Masks masks_;
  NameGuard names_;
  Term state_;
  int64_t largest_need_;  // how far an answer may put off its end
  bool cut_ = false;
  bool cut_now_ = false;         // of the last mask
  std::vector<TokenId> forced_;  // the rest of the text, once there is no choice; the next token last
};

}  // namespace weft::grammar
