#include "engine/grammar/terms.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace weft::grammar {
namespace {

constexpr int64_t kLongestShortestBytes = 1 << 18;

constexpr Term kUnset = -1;

int64_t plus(int64_t a, int64_t b) { return std::min(kNever, a + b); }
int64_t times(int64_t count, int64_t a) { return count == 0 ? 0 : (a > kNever / count ? kNever : count * a); }

}  // namespace

size_t Terms::Hash::operator()(const Node& node) const {
  uint64_t hash = static_cast<uint64_t>(node.kind);
  for (const int32_t part : {node.a, node.b, node.min, node.max}) {
    hash = (hash ^ static_cast<uint32_t>(part)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

Terms::Terms(const VocabularyTrie& trie) : trie_(trie) {
  for (const Kind kind : {Kind::nothing, Kind::end}) add({.kind = kind});
}

Term Terms::add(const Node& node) {
  if (const auto found = ids_.find(node); found != ids_.end()) return found->second;
  const Facts facts = facts_of(node);
  if (is_sealed_ && facts.need >= kNever) return kNothing;
  if (!is_sealed_ && nodes_.size() >= kMaxTerms) {
    fail(ErrorKind::unsupported, "grammar", "wanted a schema of at most {} terms, found more", kMaxTerms);
  }
  const auto id = static_cast<Term>(nodes_.size());
  nodes_.push_back(node);
  facts_.push_back(facts);
  rows_.emplace_back();
  ids_.emplace(node, id);
  return id;
}

int32_t Terms::add_list(std::vector<Term> list) {
  const auto [found, fresh] = list_ids_.emplace(std::move(list), static_cast<int32_t>(lists_.size()));
  if (fresh) lists_.push_back(found->first);
  return found->second;
}

Term Terms::bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  const auto found = std::ranges::find(sets_, set);
  const auto index = static_cast<int32_t>(found - sets_.begin());
  if (found == sets_.end()) sets_.push_back(set);
  return add({.kind = Kind::bytes, .a = index});
}

Term Terms::literal(std::string_view text) {
  if (text.empty()) return kEnd;
  auto found = literal_ids_.find(text);
  if (found == literal_ids_.end()) {
    found = literal_ids_.emplace(text, static_cast<int32_t>(literals_.size())).first;
    literals_.emplace_back(text);
    fewest_.push_back(trie_.fewest_tokens(text));
  }
  return add({.kind = Kind::literal, .a = found->second});
}

Term Terms::marker(Marker marker) { return add({.kind = Kind::marker, .a = symbol(marker)}); }

Term Terms::sequence(Term a, Term b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEnd) return b;
  if (b == kEnd) return a;
  // Constant text that stands together is one literal, so that its tokens are counted as a whole.
  if (!is_sealed_ && is_whole_literal(a)) {
    const auto joined = [&](Term other) {
      return literal(literals_[static_cast<size_t>(node(a).a)] + literals_[static_cast<size_t>(node(other).a)]);
    };
    if (is_whole_literal(b)) return joined(b);
    const Node second = node(b);
    if (second.kind == Kind::sequence && is_whole_literal(second.a)) return sequence(joined(second.a), second.b);
  }
  return add({.kind = Kind::sequence, .a = a, .b = b});
}

Term Terms::sequence(std::initializer_list<Term> parts) {
  Term whole = kEnd;
  for (auto part = std::rbegin(parts); part != std::rend(parts); ++part) whole = sequence(*part, whole);
  return whole;
}

Term Terms::either(const std::vector<Term>& choices) {
  std::vector<Term> flat;
  for (const Term choice : choices) {
    if (node(choice).kind == Kind::either) {
      const std::span<const Term> inner = this->choices(choice);
      flat.insert(flat.end(), inner.begin(), inner.end());
    } else if (choice != kNothing) {
      flat.push_back(choice);
    }
  }
  std::ranges::sort(flat);
  flat.erase(std::ranges::unique(flat).begin(), flat.end());
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat.front();
  if (flat.size() > kMaxReadings) {
    fail(ErrorKind::unsupported, "grammar", "wanted a schema under which a text has at most {} readings, found {}",
         kMaxReadings, flat.size());
  }
  return add({.kind = Kind::either, .a = add_list(std::move(flat))});
}

Term Terms::repeat(Term item, int32_t min, int32_t max) {
  if (max == 0 || item == kEnd) return kEnd;
  if (item == kNothing) return min == 0 ? kEnd : kNothing;
  if (min == 1 && max == 1) return item;
  if (nullable(item)) min = 0;
  return add({.kind = Kind::repeat, .a = item, .min = min, .max = max});
}

Term Terms::unit(Term inner, int32_t spare) {
  const Kind kind = node(inner).kind;
  const bool is_over = inner == kEnd || inner == kNothing;
  if (is_over || (spare == 0 && kind != Kind::sequence && kind != Kind::either && kind != Kind::repeat)) return inner;
  return add({.kind = Kind::unit, .a = inner, .min = spare});
}

Term Terms::soft(Term inner) {
  if (inner == kEnd || inner == kNothing || node(inner).kind == Kind::soft) return inner;
  return add({.kind = Kind::soft, .a = inner});
}

Term Terms::automaton(Dfa dfa) {
  if (!dfa.any()) return kNothing;
  automata_.push_back(std::move(dfa));
  return add({.kind = Kind::automaton, .a = static_cast<int32_t>(automata_.size()) - 1, .min = 0});
}

Term Terms::members(Members members) {
  std::vector<Term> left(members.members.size());
  for (size_t i = 0; i < left.size(); ++i) left[i] = static_cast<Term>(i);
  objects_.push_back(std::move(members));
  return add(
      {.kind = Kind::members, .a = static_cast<int32_t>(objects_.size()) - 1, .b = add_list(std::move(left)), .min = kFirst});
}

Term Terms::rule() {
  bodies_.push_back(kNothing);
  return add({.kind = Kind::rule, .a = static_cast<int32_t>(bodies_.size()) - 1});
}

void Terms::define(Term rule, Term body) { bodies_[static_cast<size_t>(node(rule).a)] = body; }

// Needs only sink, from kNever to their least fixed point.
void Terms::seal() {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Facts facts = facts_of(nodes_[i]);
      changed = changed || facts.need != facts_[i].need;
      facts_[i] = facts;
    }
  }
  is_sealed_ = true;
  sealed_ = nodes_.size();
  sealed_lists_ = lists_.size();
}

Terms::Facts Terms::facts_of(const Node& node) const {
  const auto index = static_cast<size_t>(node.a);
  switch (node.kind) {
    case Kind::nothing: return {false, kNever};
    case Kind::end: return {true, 0};
    case Kind::bytes:
    case Kind::marker: return {false, 1};
    case Kind::literal: return {false, fewest_[index][static_cast<size_t>(node.min)]};
    case Kind::sequence: return {nullable(node.a) && nullable(node.b), plus(need(node.a), need(node.b))};
    case Kind::either: {
      Facts facts;
      for (const Term choice : lists_[index]) {
        facts.nullable = facts.nullable || nullable(choice);
        facts.need = std::min(facts.need, need(choice));
      }
      return facts;
    }
    case Kind::repeat: return {node.min == 0 || nullable(node.a), times(node.min, need(node.a))};
    case Kind::unit: return {nullable(node.a), plus(need(node.a), node.min)};
    case Kind::soft: return {true, 0};
    case Kind::automaton: {
      const Dfa& dfa = automata_[index];
      return {dfa.accepting(node.min), dfa.distance(node.min)};
    }
    case Kind::rule: return {false, need(bodies_[index])};
    case Kind::members: return {members_may_end(node) && nullable(objects_[index].end), members_need(node)};
  }
  return {};
}

bool Terms::members_may_end(const Node& node) const {
  if (node.min == kMust) return false;
  const Members& object = objects_[static_cast<size_t>(node.a)];
  return std::ranges::none_of(lists_[static_cast<size_t>(node.b)],
                              [&](Term i) { return object.members[static_cast<size_t>(i)].required; });
}

int64_t Terms::members_need(const Node& node) const {
  const Members& object = objects_[static_cast<size_t>(node.a)];
  int64_t count = 0;
  int64_t items = 0;
  int64_t least = need(object.extra);
  for (const Term i : lists_[static_cast<size_t>(node.b)]) {
    const Members::Member& member = object.members[static_cast<size_t>(i)];
    least = std::min(least, need(member.item));
    if (!member.required) continue;
    ++count;
    items = plus(items, need(member.item));
  }
  if (count == 0 && node.min == kMust) {
    count = 1;
    items = least;
  }
  const int64_t separators = node.min == kLater ? count : std::max<int64_t>(count - 1, 0);
  return plus(plus(items, times(separators, need(object.separator))), need(object.end));
}

Term Terms::expand_members(const Node& node) {
  const Members object = objects_[static_cast<size_t>(node.a)];
  const std::vector<Term> left = lists_[static_cast<size_t>(node.b)];
  const Term end = members_may_end(node) ? object.end : kNothing;
  if (node.min == kLater && object.separator != kEnd) {
    const Term must = add({.kind = Kind::members, .a = node.a, .b = node.b, .min = kMust});
    return either({sequence(object.separator, must), end});
  }
  std::vector<Term> choices{end};
  for (size_t i = 0; i < left.size(); ++i) {
    std::vector<Term> rest = left;
    rest.erase(rest.begin() + static_cast<int64_t>(i));
    const Term then = add({.kind = Kind::members, .a = node.a, .b = add_list(std::move(rest)), .min = kLater});
    choices.push_back(sequence(object.members[static_cast<size_t>(left[i])].item, then));
  }
  if (object.extra != kNothing) {
    choices.push_back(sequence(object.extra, add({.kind = Kind::members, .a = node.a, .b = node.b, .min = kLater})));
  }
  return either(choices);
}

Term Terms::expand(Term term) {
  const Node found = node(term);
  if (found.kind == Kind::rule) return bodies_[static_cast<size_t>(found.a)];
  if (found.kind != Kind::members) return term;
  if (const auto known = expanded_.find(term); known != expanded_.end()) return known->second;
  const Term made = expand_members(found);
  expanded_.emplace(term, made);
  return made;
}

Term Terms::after(Term term, Symbol symbol) {
  const Node& found = node(term);
  switch (found.kind) {  // what needs no memory
    case Kind::nothing:
    case Kind::end: return kNothing;
    case Kind::bytes:
      return symbol < 256 && sets_[static_cast<size_t>(found.a)].test(static_cast<size_t>(symbol)) ? kEnd : kNothing;
    case Kind::marker: return found.a == symbol ? kEnd : kNothing;
    case Kind::literal: {
      const std::string& text = literals_[static_cast<size_t>(found.a)];
      if (static_cast<uint8_t>(text[static_cast<size_t>(found.min)]) != symbol) return kNothing;
      const int32_t next = found.min + 1;
      return static_cast<size_t>(next) == text.size() ? kEnd : add({.kind = Kind::literal, .a = found.a, .min = next});
    }
    default: break;
  }
  const auto index = static_cast<size_t>(term);
  if (!rows_[index]) {
    rows_[index] = std::make_unique<Row>();
    rows_[index]->fill(kUnset);
  }
  Term& known = (*rows_[index])[static_cast<size_t>(symbol)];  // a row stays in place
  if (known == kUnset) known = compute_after(term, symbol);
  return known;
}

Term Terms::after(Term term, std::string_view text) {
  for (const char byte : text) term = after(term, static_cast<uint8_t>(byte));
  return term;
}

Term Terms::compute_after(Term term, Symbol symbol) {
  if (need(term) >= kNever) return kNothing;
  const Node found = node(term);
  switch (found.kind) {
    case Kind::sequence: {
      const Term first = sequence(after(found.a, symbol), found.b);
      return nullable(found.a) ? either({first, after(found.b, symbol)}) : first;
    }
    case Kind::either: {
      const std::vector<Term> list(choices(term).begin(), choices(term).end());
      std::vector<Term> next;
      for (const Term choice : list) {
        if (const Term rest = after(choice, symbol); rest != kNothing) next.push_back(rest);
      }
      return either(next);
    }
    case Kind::repeat: {
      const Term first = after(found.a, symbol);
      if (first == kNothing) return kNothing;
      return sequence(first, repeat(found.a, std::max(found.min - 1, 0), found.max == kUnbounded ? kUnbounded : found.max - 1));
    }
    case Kind::unit: {
      const Term inner = after(found.a, symbol);
      return symbol < 256 ? unit(inner, found.min) : inner;
    }
    case Kind::soft: {
      const Term inner = after(found.a, symbol);
      const bool opens = symbol == grammar::symbol(Marker::open) || symbol == grammar::symbol(Marker::open_call);
      return opens ? inner : soft(inner);
    }
    case Kind::automaton: {
      if (symbol >= 256) return kNothing;
      const int32_t next = automata_[static_cast<size_t>(found.a)].next(found.min, static_cast<uint8_t>(symbol));
      return next < 0 ? kNothing : add({.kind = Kind::automaton, .a = found.a, .min = next});
    }
    case Kind::rule:
    case Kind::members: return after(expand(term), symbol);
    default: return kNothing;
  }
}

std::vector<Symbol> Terms::shortest(Term term) {
  std::vector<Symbol> out;
  append_shortest(term, out);
  return out;
}

void Terms::append_shortest(Term term, std::vector<Symbol>& out) {
  // A few definitions that refer to each other twice describe a text that doubles with each.
  if (std::ssize(out) > kLongestShortestBytes) {
    fail(ErrorKind::unsupported, "grammar", "wanted a schema whose shortest value has at most {} bytes, found a longer one",
         with_commas(kLongestShortestBytes));
  }
  const Node found = node(term);
  switch (found.kind) {
    case Kind::nothing:
    case Kind::end:
    case Kind::soft: return;
    case Kind::bytes:
      out.push_back(printable_byte([&](size_t byte) { return sets_[static_cast<size_t>(found.a)].test(byte); }));
      return;
    case Kind::marker: out.push_back(found.a); return;
    case Kind::literal:
      for (const char byte : std::string_view(literals_[static_cast<size_t>(found.a)]).substr(static_cast<size_t>(found.min))) {
        out.push_back(static_cast<uint8_t>(byte));
      }
      return;
    case Kind::sequence:
      append_shortest(found.a, out);
      append_shortest(found.b, out);
      return;
    case Kind::either: {
      const std::span<const Term> list = choices(term);
      append_shortest(*std::ranges::min_element(list, {}, [&](Term choice) { return need(choice); }), out);
      return;
    }
    case Kind::repeat:
      for (int32_t i = 0; i < found.min; ++i) append_shortest(found.a, out);
      return;
    case Kind::unit: append_shortest(found.a, out); return;
    case Kind::automaton: {
      const Dfa& dfa = automata_[static_cast<size_t>(found.a)];
      for (int32_t state = found.min; !dfa.accepting(state);) {
        const uint8_t byte = dfa.shortest_byte(state);
        out.push_back(byte);
        state = dfa.next(state, byte);
      }
      return;
    }
    case Kind::rule: append_shortest(bodies_[static_cast<size_t>(found.a)], out); return;
    case Kind::members: append_shortest_members(found, out); return;
  }
}

// As members_need() counts.
void Terms::append_shortest_members(const Node& node, std::vector<Symbol>& out) {
  const Members& object = objects_[static_cast<size_t>(node.a)];
  std::vector<Term> items;
  Term least = object.extra;
  for (const Term i : lists_[static_cast<size_t>(node.b)]) {
    const Members::Member& member = object.members[static_cast<size_t>(i)];
    if (need(member.item) < need(least)) least = member.item;
    if (member.required) items.push_back(member.item);
  }
  if (items.empty() && node.min == kMust) items.push_back(least);
  bool separate = node.min == kLater;
  for (const Term item : items) {
    if (separate) append_shortest(object.separator, out);
    append_shortest(item, out);
    separate = true;
  }
  append_shortest(object.end, out);
}

Term Terms::clamp(Term term, int32_t longest, int64_t& extra) {
  const Node found = node(term);
  switch (found.kind) {
    case Kind::unit: return unit(clamp(found.a, longest, extra), found.min);
    case Kind::sequence: {
      const Term a = clamp(found.a, longest, extra);
      return sequence(a, clamp(found.b, longest, extra));
    }
    case Kind::repeat: {
      const int32_t min = std::min(found.min, longest);
      extra = plus(extra, times(found.min - min, need(found.a)));
      return repeat(found.a, min, found.max > longest ? kUnbounded : found.max);
    }
    default: return term;
  }
}

void Terms::reset_to_sealed() {
  nodes_.resize(sealed_);
  facts_.resize(sealed_);
  rows_.clear();
  rows_.resize(sealed_);
  std::erase_if(ids_, [&](const auto& entry) { return static_cast<size_t>(entry.second) >= sealed_; });
  std::erase_if(list_ids_, [&](const auto& entry) { return static_cast<size_t>(entry.second) >= sealed_lists_; });
  lists_.resize(sealed_lists_);
  expanded_.clear();
}

Term Terms::compact(Term keep) {
  const std::vector<Node> nodes = nodes_;
  const std::vector<std::vector<Term>> lists = lists_;
  reset_to_sealed();
  std::unordered_map<Term, Term> copied;
  return copy(keep, nodes, lists, copied);
}

Term Terms::copy(Term term, const std::vector<Node>& nodes, const std::vector<std::vector<Term>>& lists,
                 std::unordered_map<Term, Term>& copied) {
  if (static_cast<size_t>(term) < sealed_) return term;
  if (const auto found = copied.find(term); found != copied.end()) return found->second;
  Node made = nodes[static_cast<size_t>(term)];
  const auto again = [&](Term inner) { return copy(inner, nodes, lists, copied); };
  switch (made.kind) {
    case Kind::sequence:
      made.a = again(made.a);
      made.b = again(made.b);
      break;
    case Kind::repeat:
    case Kind::unit:
    case Kind::soft: made.a = again(made.a); break;
    case Kind::either: {
      std::vector<Term> list = lists[static_cast<size_t>(made.a)];
      for (Term& choice : list) choice = again(choice);
      std::ranges::sort(list);
      made.a = add_list(std::move(list));
      break;
    }
    case Kind::members: made.b = add_list(lists[static_cast<size_t>(made.b)]); break;
    default: break;
  }
  const Term id = add(made);
  copied.emplace(term, id);
  return id;
}

}  // namespace weft::grammar
