#include "engine/grammar/masks.h"

#include <algorithm>

namespace weft::grammar {
namespace {

constexpr size_t kFewIds = 2048;       // of a bucket; beyond, bits take less room
constexpr size_t kMaxBeyond = 4096;    // entries that are kept
constexpr size_t kMaxHeld = 64 << 20;  // bytes of sets of tokens that are kept
constexpr size_t kMaxVisits = 4096;    // parts of one state; a state with more is walked as a whole

void set_bit(std::span<uint32_t> words, TokenId id) {
  words[static_cast<size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
}

}  // namespace

class Masks::Sorter {
 public:
  explicit Sorter(int64_t vocabulary) : words_(static_cast<size_t>((vocabulary + 31) / 32)) {}

  void add(TokenId id, int64_t need) {
    if (last_ == buckets_.size() || buckets_[last_].need != need) {
      last_ = static_cast<size_t>(std::ranges::find(buckets_, need, &Bucket::need) - buckets_.begin());
      if (last_ == buckets_.size()) buckets_.emplace_back().need = need;
    }
    buckets_[last_].ids.push_back(id);
  }
  Buckets take() {
    for (Bucket& bucket : buckets_) {
      if (bucket.ids.size() <= kFewIds) continue;
      bucket.words.assign(words_, 0);
      for (const TokenId id : bucket.ids) set_bit(bucket.words, id);
      bucket.ids = {};
    }
    return std::move(buckets_);
  }

 private:
  size_t words_;
  Buckets buckets_;
  size_t last_ = 0;
};

Masks::Masks(const VocabularyTrie& trie, Terms& terms, MarkerTokens markers)
    : trie_(trie), terms_(terms), markers_(std::move(markers)), path_(trie.longest() + 1) {}

template <class OnToken, class OnNode>
void Masks::walk(Term state, uint32_t first, uint32_t last, const OnToken& token, const OnNode& node) {
  const std::span<const VocabularyTrie::Node> nodes = trie_.nodes();
  if (first >= last) return;
  path_[nodes[first].depth - 1U] = state;
  for (uint32_t at = first; at < last;) {
    const VocabularyTrie::Node& here = nodes[at];
    const Term rest = terms_.after(path_[here.depth - 1U], here.byte);
    if (rest == kNothing) {
      at = here.end;
      continue;
    }
    path_[here.depth] = rest;
    if (here.token >= 0) token(here.token, rest);
    node(at, rest);
    ++at;
  }
}

bool Masks::fits(int64_t need, int64_t limit) {
  if (need <= limit) return true;
  if (need - limit <= short_) cut_ = true;
  return false;
}

bool Masks::fill(Term state, int64_t limit, int64_t most, std::span<uint32_t> words) {
  if (held_ > kMaxHeld) {
    parts_.clear();
    beyond_.clear();
    held_ = 0;
  }
  words_ = words;
  any_ = false;
  cut_ = false;
  short_ = most - limit;
  visits_ = 0;
  fill_state(state, kEnd, limit);
  if (visits_ > kMaxVisits) {
    const auto size = static_cast<uint32_t>(trie_.nodes().size());
    const auto take = [&](TokenId id, Term rest) {
      if (!fits(terms_.need(rest), limit)) return;
      set_bit(words_, id);
      any_ = true;
    };
    walk(state, 0, size, take, [](uint32_t, Term) {});
    for (size_t marker = 0; marker < markers_.size(); ++marker) {
      const Term rest = terms_.after(state, symbol(static_cast<Marker>(marker)));
      if (rest != kNothing && fits(terms_.need(rest), limit)) fill_marker(marker);
    }
  }
  return any_;
}

void Masks::fill_state(Term state, Term then, int64_t limit) {
  if (++visits_ > kMaxVisits) return;
  const Terms::Node node = terms_.node(state);
  switch (node.kind) {
    case Terms::Kind::nothing: return;
    case Terms::Kind::end:
      if (then != kEnd) fill_state(then, kEnd, limit);
      return;
    case Terms::Kind::either: {
      const std::vector<Term> choices(terms_.choices(state).begin(), terms_.choices(state).end());
      for (const Term choice : choices) fill_state(choice, then, limit);
      return;
    }
    case Terms::Kind::rule:
    case Terms::Kind::members: return fill_state(terms_.expand(state), then, limit);
    case Terms::Kind::sequence: return fill_state(node.a, terms_.sequence(node.b, then), limit);
    case Terms::Kind::repeat: {
      const int32_t max = node.max == kUnbounded ? kUnbounded : node.max - 1;
      const Term rest = terms_.repeat(node.a, std::max(node.min - 1, 0), max);
      fill_state(node.a, terms_.sequence(rest, then), limit);
      if (node.min == 0) fill_state(kEnd, then, limit);
      return;
    }
    case Terms::Kind::soft: return fill_state(node.a, then, kNever);
    case Terms::Kind::marker:
      if (fits(terms_.need(then), limit)) fill_marker(static_cast<size_t>(node.a - 256));
      return;
    case Terms::Kind::bytes:
    case Terms::Kind::literal:
    case Terms::Kind::automaton:
    case Terms::Kind::unit: return fill_part(state, then, limit);
  }
}

void Masks::fill_part(Term part, Term then, int64_t limit) {
  int64_t extra = 0;
  const Term alike = terms_.clamp(part, static_cast<int32_t>(trie_.longest()), extra);
  const Part& found = part_of(alike);
  fill_buckets(found.buckets, limit - extra - terms_.need(then));
  for (size_t marker = 0; marker < markers_.size(); ++marker) {
    const int64_t need = found.markers[marker];
    if (need < kNever && fits(need + extra + terms_.need(then), limit)) fill_marker(marker);
  }
  if (then == kEnd) return;
  if (!found.exits.empty()) fill_buckets(beyond(alike, found, then), limit);
  if (terms_.nullable(part)) fill_state(kEnd, then, limit);
}

const Masks::Part& Masks::part_of(Term term) {
  if (const auto known = parts_.find(term); known != parts_.end()) return known->second;
  Part part;
  Sorter sorter(trie_.vocabulary());
  const std::span<const VocabularyTrie::Node> nodes = trie_.nodes();
  walk(
      term, 0, static_cast<uint32_t>(nodes.size()), [&](TokenId id, Term rest) { sorter.add(id, terms_.need(rest)); },
      [&](uint32_t at, Term rest) {
        if (nodes[at].end > at + 1 && terms_.nullable(rest)) part.exits.push_back(at);
      });
  part.buckets = sorter.take();
  for (size_t marker = 0; marker < markers_.size(); ++marker) {
    part.markers[marker] = terms_.need(terms_.after(term, symbol(static_cast<Marker>(marker))));
  }
  held_ += bytes_of(part.buckets);
  return parts_.emplace(term, std::move(part)).first->second;
}

const Masks::Buckets& Masks::beyond(Term term, const Part& part, Term then) {
  if (const auto known = beyond_.find({term, then}); known != beyond_.end()) return known->second;
  if (beyond_.size() >= kMaxBeyond) beyond_.clear();
  Sorter sorter(trie_.vocabulary());
  for (const uint32_t exit : part.exits) {
    walk(
        then, exit + 1, trie_.nodes()[exit].end, [&](TokenId id, Term rest) { sorter.add(id, terms_.need(rest)); },
        [](uint32_t, Term) {});
  }
  const Buckets& made = beyond_.emplace(std::pair(term, then), sorter.take()).first->second;
  held_ += bytes_of(made);
  return made;
}

void Masks::fill_marker(size_t marker) {
  for (const TokenId id : markers_[marker]) set_bit(words_, id);
  any_ = true;
}

void Masks::fill_buckets(const Buckets& buckets, int64_t limit) {
  for (const Bucket& bucket : buckets) {
    if (!fits(bucket.need, limit)) continue;
    for (const TokenId id : bucket.ids) set_bit(words_, id);
    for (size_t i = 0; i < bucket.words.size(); ++i) words_[i] |= bucket.words[i];
    any_ = true;
  }
}

size_t Masks::bytes_of(const Buckets& buckets) {
  size_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    bytes += sizeof(Bucket) + bucket.ids.capacity() * sizeof(TokenId) + bucket.words.capacity() * sizeof(uint32_t);
  }
  return bytes;
}

void Masks::compact() {
  const auto is_gone = [&](Term term) { return static_cast<size_t>(term) >= terms_.sealed_size(); };
  std::erase_if(parts_, [&](const auto& entry) { return is_gone(entry.first); });
  std::erase_if(beyond_, [&](const auto& entry) { return is_gone(entry.first.first) || is_gone(entry.first.second); });
  held_ = 0;
  for (const auto& [term, part] : parts_) held_ += bytes_of(part.buckets);
  for (const auto& [terms, buckets] : beyond_) held_ += bytes_of(buckets);
}

}  // namespace weft::grammar
