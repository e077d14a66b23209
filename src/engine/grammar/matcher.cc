#include "engine/grammar/matcher.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace weft::grammar {
namespace {

// Tokens that the shortest way to the end may grow by; bounds how deep a text nests.
constexpr int64_t kMaxGrowth = 1024;
// Terms made since the compilation after which those that the state does not hold are forgotten.
constexpr size_t kMaxLiveTerms = 1 << 14;

}  // namespace

Vocabulary::Vocabulary(const KimiTokenizer& tokenizer) : tokenizer_(tokenizer), trie_(tokenizer) {
  const MarkerIds& ids = tokenizer.markers();
  markers_[static_cast<size_t>(Marker::open)] = {ids.open};
  markers_[static_cast<size_t>(Marker::close)] = {ids.close};
  markers_[static_cast<size_t>(Marker::sep)] = {ids.sep};
  markers_[static_cast<size_t>(Marker::end)] = {tokenizer.stop_ids().begin(), tokenizer.stop_ids().end()};
}

Matcher::Matcher(std::shared_ptr<const Vocabulary> vocabulary, Grammar grammar)
    : vocabulary_(std::move(vocabulary)),
      terms_(std::move(grammar.terms)),
      masks_(vocabulary_->trie(), *terms_, vocabulary_->markers()),
      state_(grammar.start),
      largest_need_(terms_->need(state_) + kMaxGrowth) {
  if (terms_->need(state_) >= kNever)
    fail(ErrorKind::bad_input, "grammar", "wanted a schema that some value fulfils, found none");
}

std::vector<TokenId> Matcher::shortest_tokens() const {
  std::vector<TokenId> tokens;
  std::string text;
  const auto spell = [&] {
    const std::vector<TokenId> spelled = vocabulary_->trie().spell(text);
    tokens.insert(tokens.end(), spelled.begin(), spelled.end());
    text.clear();
  };
  for (const Symbol symbol : terms_->shortest(state_)) {
    if (symbol < 256) {
      text += static_cast<char>(symbol);
      continue;
    }
    spell();
    tokens.push_back(vocabulary_->markers()[static_cast<size_t>(symbol - 256)].front());
  }
  spell();
  return tokens;
}

int64_t Matcher::tokens_to_end() const {
  return static_cast<int64_t>(forced_.empty() ? shortest_tokens().size() : forced_.size());
}

void Matcher::fill_mask(std::span<uint32_t> words, int64_t budget) {
  std::ranges::fill(words, 0U);
  if (forced_.empty()) {
    if (masks_.fill(state_, std::min(budget - 1, largest_need_), words)) return;
    forced_ = shortest_tokens();
    std::ranges::reverse(forced_);
    if (forced_.empty()) fail(ErrorKind::internal, "grammar", "wanted a next token, found the end of the text");
  }
  words[static_cast<size_t>(forced_.back()) / 32] |= 1U << (static_cast<uint32_t>(forced_.back()) % 32);
}

void Matcher::accept(TokenId id) {
  const KimiTokenizer& tokenizer = vocabulary_->tokenizer();
  Term next = kNothing;
  if (!tokenizer.is_control(id)) {
    next = terms_->after(state_, tokenizer.token_bytes(id));
  } else {
    for (size_t marker = 0; marker < vocabulary_->markers().size(); ++marker) {
      if (std::ranges::find(vocabulary_->markers()[marker], id) == vocabulary_->markers()[marker].end()) continue;
      next = terms_->after(state_, symbol(static_cast<Marker>(marker)));
    }
  }
  if (next == kNothing) fail(ErrorKind::internal, "grammar", "wanted a token of the last mask, found id {}", id);
  if (!forced_.empty()) forced_.pop_back();
  move_to(next);
}

void Matcher::accept_text(std::string_view text) {
  const Term next = terms_->after(state_, text);
  if (next == kNothing) {
    fail(ErrorKind::bad_input, "grammar", "wanted the beginning of an answer that the request allows, found '{}'",
         printable(text.substr(0, 60)));
  }
  move_to(next);
}

void Matcher::move_to(Term state) {
  state_ = state;
  if (terms_->size() < terms_->sealed_size() + kMaxLiveTerms) return;
  state_ = terms_->compact(state);
  masks_.compact();
}

}  // namespace weft::grammar
