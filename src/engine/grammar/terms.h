// Grammars as terms that are read one symbol at a time: after(term, symbol) is what may still follow once the symbol was
// written. Equal terms have one id, so a state of a request is one number, and everything known about it can be kept by that
// number.
//
//     Terms terms(trie);
//     Term list = terms.sequence({terms.literal("["), terms.repeat(terms.literal("1,"), 0, kUnbounded), terms.literal("1]")});
//     terms.seal();
//     Term rest = terms.after(list, '[');
//     terms.need(rest);   // 1: the tokens that the shortest way to the end takes, where "1]" is a token
//
// Every term that after() gives can still be completed: there are no dead ends. The work for one symbol grows with the readings
// of the text so far that are still open (alternatives that begin alike share what they share), of which there may be
// kMaxReadings.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/grammar/dfa.h"
#include "engine/grammar/vocabulary_trie.h"

namespace weft::grammar {

using Term = int32_t;
inline constexpr Term kNothing = 0;  // no text at all
inline constexpr Term kEnd = 1;      // the empty text

// What a text consists of: bytes, and the control tokens that a grammar may name.
enum class Marker : uint8_t {
  open,  // of XTML
  close,
  sep,
  end,         // an end token, of both
  open_think,  // of ChatML
  close_think,
  open_call,
  close_call,
};
inline constexpr size_t kMarkers = 8;
using Symbol = int32_t;  // a byte, or 256 + a marker
inline constexpr Symbol kSymbols = 256 + static_cast<Symbol>(kMarkers);
[[nodiscard]] constexpr Symbol symbol(Marker marker) { return 256 + static_cast<Symbol>(marker); }

using ByteSet = std::bitset<256>;
inline constexpr int32_t kUnbounded = -1;
inline constexpr int64_t kNever = int64_t{1} << 60;  // tokens of what cannot be completed
inline constexpr size_t kMaxReadings = 4096;
inline constexpr size_t kMaxTerms = 1 << 20;  // of a grammar as it is compiled

// Things in any order, each at most once, the required ones always.
struct Members {
  struct Member {
    Term item = kNothing;
    bool required = false;
  };
  std::vector<Member> members;
  Term extra = kNothing;  // a further one, any number of times
  Term separator = kEnd;  // between two of them
  Term end = kEnd;        // behind the last
};

class Terms {
 public:
  enum class Kind : uint8_t {
    nothing,
    end,
    bytes,
    literal,
    marker,
    sequence,
    either,
    repeat,
    unit,
    soft,
    automaton,
    rule,
    members
  };
  struct Node {
    Kind kind = Kind::nothing;
    Term a = 0;       // operand; index of the byte set, literal, marker, list, automaton, rule or object
    Term b = 0;       // second operand; list of the members that are left
    int32_t min = 0;  // repeat; offset in the literal; state of the automaton; phase of the members; tokens spared for a unit
    int32_t max = 0;  // repeat
    friend bool operator==(const Node&, const Node&) = default;
  };

  // Keeps a reference to the trie.
  explicit Terms(const VocabularyTrie& trie);

  [[nodiscard]] Term bytes(const ByteSet& set);
  [[nodiscard]] Term literal(std::string_view text);
  [[nodiscard]] Term marker(Marker marker);
  [[nodiscard]] Term sequence(Term a, Term b);
  [[nodiscard]] Term sequence(std::initializer_list<Term> parts);
  [[nodiscard]] Term either(const std::vector<Term>& choices);
  [[nodiscard]] Term optional(Term item) { return either({item, kEnd}); }
  [[nodiscard]] Term repeat(Term item, int32_t min, int32_t max);
  // The same language. Masks of its states are kept apart from what follows it, up to the first marker; for parts that end
  // with a delimiter, so that few tokens reach beyond them. `spare` tokens are counted into its need as long as it is not at
  // its end.
  [[nodiscard]] Term unit(Term inner, int32_t spare = 0);
  // The same language up to <|open|> or <tool_call>, but a text may be cut anywhere in it at no loss: the way to its end needs
  // no tokens.
  [[nodiscard]] Term soft(Term inner);
  [[nodiscard]] Term automaton(Dfa dfa);
  [[nodiscard]] Term members(Members members);
  // A rule may name itself behind at least one symbol.
  [[nodiscard]] Term rule();
  void define(Term rule, Term body);

  // Ends the compilation: needs are known from here on. Throws unsupported beyond kMaxTerms.
  void seal();

  [[nodiscard]] Term after(Term term, Symbol symbol);
  [[nodiscard]] Term after(Term term, std::string_view text);
  // The text may end here.
  [[nodiscard]] bool nullable(Term term) const { return facts_[static_cast<size_t>(term)].nullable; }
  // Tokens of the shortest text of the term, where tokens do not join its parts; an upper bound therefore. kNever: there is
  // none.
  [[nodiscard]] int64_t need(Term term) const { return facts_[static_cast<size_t>(term)].need; }
  // That text.
  [[nodiscard]] std::vector<Symbol> shortest(Term term);

  [[nodiscard]] const Node& node(Term term) const { return nodes_[static_cast<size_t>(term)]; }
  [[nodiscard]] std::span<const Term> choices(Term either) const { return lists_[static_cast<size_t>(node(either).a)]; }
  // A rule or members as what they stand for.
  [[nodiscard]] Term expand(Term term);
  // The term with counts that no token of `longest` bytes can exhaust made alike; `extra` receives by how many tokens its need
  // is smaller.
  [[nodiscard]] Term clamp(Term term, int32_t longest, int64_t& extra);

  // Forgets every term that seal() did not see and `keep` does not hold; the new id of `keep`.
  [[nodiscard]] Term compact(Term keep);
  [[nodiscard]] size_t size() const { return nodes_.size(); }
  [[nodiscard]] size_t sealed_size() const { return sealed_; }

 private:
  enum Phase : int32_t { kFirst, kLater, kMust };
  using Row = std::array<Term, kSymbols>;
  struct Facts {
    bool nullable = false;
    int64_t need = kNever;
  };
  struct Hash {
    size_t operator()(const Node& node) const;
  };

  Term add(const Node& node);
  int32_t add_list(std::vector<Term> list);
  void reset_to_sealed();
  [[nodiscard]] Facts facts_of(const Node& node) const;
  [[nodiscard]] int64_t members_need(const Node& node) const;
  [[nodiscard]] bool members_may_end(const Node& node) const;
  Term compute_after(Term term, Symbol symbol);
  Term expand_members(const Node& node);
  void append_shortest(Term term, std::vector<Symbol>& out);
  void append_shortest_members(const Node& node, std::vector<Symbol>& out);
  Term copy(Term term, const std::vector<Node>& nodes, const std::vector<std::vector<Term>>& lists,
            std::unordered_map<Term, Term>& copied);
  [[nodiscard]] bool is_whole_literal(Term term) const { return node(term).kind == Kind::literal && node(term).min == 0; }

  const VocabularyTrie& trie_;
  std::vector<Node> nodes_;
  std::vector<Facts> facts_;
  std::vector<std::unique_ptr<Row>> rows_;  // what after() found
  std::unordered_map<Node, Term, Hash> ids_;
  std::vector<std::vector<Term>> lists_;
  std::map<std::vector<Term>, int32_t> list_ids_;
  std::unordered_map<Term, Term> expanded_;

  std::vector<ByteSet> sets_;
  std::vector<std::string> literals_;
  std::map<std::string, int32_t, std::less<>> literal_ids_;
  std::vector<std::vector<int32_t>> fewest_;  // of each literal: tokens from each offset
  std::vector<Dfa> automata_;
  std::vector<Members> objects_;
  std::vector<Term> bodies_;  // of rules
  bool is_sealed_ = false;
  size_t sealed_ = 0;
  size_t sealed_lists_ = 0;
};

}  // namespace weft::grammar
