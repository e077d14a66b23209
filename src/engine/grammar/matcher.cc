#include "engine/grammar/matcher.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chatml_markers.h"
#include "text/xtml_markers.h"

namespace weft::grammar {
namespace {

// Tokens that the shortest way to the end may grow by; bounds how deep a text nests.
constexpr int64_t kMaxGrowth = 1024;
// Terms made since the compilation after which those that the state does not hold are forgotten.
constexpr size_t kMaxLiveTerms = 1 << 14;

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer, ChatStyle style) : tokenizer_(tokenizer), style_(style), trie_(tokenizer) {
  const auto set = [&](Marker marker, TokenId id) { markers_[static_cast<size_t>(marker)] = {id}; };
  if (style == ChatStyle::xtml) {
    const XtmlMarkers ids(tokenizer);
    set(Marker::open, ids.open);
    set(Marker::close, ids.close);
    set(Marker::sep, ids.sep);
  } else {
    const ChatmlMarkers ids(tokenizer);
    set(Marker::open_think, ids[ChatmlMarker::open_think]);
    set(Marker::close_think, ids[ChatmlMarker::close_think]);
    set(Marker::open_call, ids[ChatmlMarker::open_call]);
    set(Marker::close_call, ids[ChatmlMarker::close_call]);
  }
  markers_[static_cast<size_t>(Marker::end)] = {tokenizer.stop_ids().begin(), tokenizer.stop_ids().end()};
  for (TokenId id = 0; id < tokenizer.rank_count(); ++id) {
    const auto quotes = static_cast<int>(std::ranges::count(tokenizer.token_bytes(id), '"'));
    if (quotes > 0) quoted_.push_back({id, quotes});
  }
}

Matcher::Matcher(std::shared_ptr<const Vocabulary> vocabulary, Grammar grammar)
    : vocabulary_(std::move(vocabulary)),
      terms_(std::move(grammar.terms)),
      masks_(vocabulary_->trie(), *terms_, vocabulary_->markers()),
      names_(vocabulary_, grammar.json_response, grammar.in_response),
      state_(grammar.start),
      largest_need_(terms_->need(state_) + kMaxGrowth) {
  if (terms_->need(state_) >= kNever)
    fail(ErrorKind::bad_input, "grammar", "wanted a schema that some value fulfils, found none");
}

std::optional<std::pair<size_t, TokenId>> Matcher::longer_name(std::string_view text) const {
  if (!names_.repeats(text)) return std::nullopt;
  size_t quote = 0;
  while (!names_.repeats(text.substr(0, quote + 1))) ++quote;
  const Tokenizer& tokenizer = vocabulary_->tokenizer();
  for (TokenId id = 0; id < tokenizer.rank_count(); ++id) {
    const std::string_view more = tokenizer.token_bytes(id);
    if (more.find_first_of("\"\\") != std::string_view::npos) continue;
    const std::string longer = fmt::format("{}{}{}", text.substr(0, quote), more, text.substr(quote));
    if (terms_->after(state_, longer) != kNothing && !names_.repeats(longer)) return std::pair(quote, id);
  }
  fail(ErrorKind::unsupported, "grammar", "wanted a name that the object does not have, found none one token longer than '{}'",
       printable(text.substr(0, 60)));
}

std::vector<TokenId> Matcher::shortest_tokens() const {
  std::vector<TokenId> tokens;
  std::string text;
  const auto append = [&](std::string_view part) {
    const std::vector<TokenId> spelled = vocabulary_->trie().spell(part);
    tokens.insert(tokens.end(), spelled.begin(), spelled.end());
  };
  const auto spell = [&] {
    // The way ends at most one name that no schema declares, before any marker.
    if (const auto longer = tokens.empty() ? longer_name(text) : std::nullopt) {
      append(std::string_view(text).substr(0, longer->first));
      tokens.push_back(longer->second);
      append(std::string_view(text).substr(longer->first));
    } else {
      append(text);
    }
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
    const bool found = masks_.fill(state_, std::min(budget - 1, largest_need_), largest_need_, words);
    cut_now_ = masks_.was_cut();
    if (found) {
      if (!names_.remove_repeats(words) || std::ranges::any_of(words, [](uint32_t word) { return word != 0; })) return;
    }
    forced_ = shortest_tokens();
    std::ranges::reverse(forced_);
    if (forced_.empty()) fail(ErrorKind::internal, "grammar", "wanted a next token, found the end of the text");
  }
  words[static_cast<size_t>(forced_.back()) / 32] |= 1U << (static_cast<uint32_t>(forced_.back()) % 32);
}

void Matcher::accept(TokenId id) {
  const Tokenizer& tokenizer = vocabulary_->tokenizer();
  Term next = kNothing;
  std::optional<Marker> marker;
  if (!tokenizer.is_control(id)) {
    next = terms_->after(state_, tokenizer.token_bytes(id));
  } else {
    for (size_t i = 0; i < vocabulary_->markers().size(); ++i) {
      if (std::ranges::find(vocabulary_->markers()[i], id) != vocabulary_->markers()[i].end()) marker = static_cast<Marker>(i);
    }
    if (marker) next = terms_->after(state_, symbol(*marker));
  }
  if (next == kNothing) fail(ErrorKind::internal, "grammar", "wanted a token of the last mask, found id {}", id);
  if (marker) {
    names_.accept(*marker);
  } else {
    names_.accept(tokenizer.token_bytes(id));
  }
  if (!forced_.empty()) forced_.pop_back();
  cut_ = cut_ || cut_now_;
  move_to(next);
}

void Matcher::accept_text(std::string_view text) {
  const Term next = terms_->after(state_, text);
  if (next == kNothing || names_.repeats(text)) {
    fail(ErrorKind::bad_input, "grammar", "wanted the beginning of an answer that the request allows, found '{}'",
         printable(text.substr(0, 60)));
  }
  names_.accept(text);
  move_to(next);
}

void Matcher::move_to(Term state) {
  state_ = state;
  if (terms_->size() < terms_->sealed_size() + kMaxLiveTerms) return;
  state_ = terms_->compact(state);
  masks_.compact();
}

}  // namespace weft::grammar
