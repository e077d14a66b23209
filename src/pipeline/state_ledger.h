// What the sequences of an executor hold, known when a decision is taken and not when the stages have carried it out: the rules
// of SequenceState (forks share, a shared slot or partial page is replaced when it is written to) on counts alone.
//
// Every stage that has state of a kind holds the same number of slots or pages, so one ledger speaks for all stages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"

namespace weft {

using SequenceId = Strong<struct SequenceIdTag>;

// Slots and pages of one stage.
struct StateUse {
  int64_t slots = 0;
  int64_t pages = 0;

  friend constexpr StateUse operator+(StateUse a, StateUse b) { return {a.slots + b.slots, a.pages + b.pages}; }
  friend constexpr bool operator==(StateUse, StateUse) = default;
};

class StateLedger {
 public:
  // `pages`: whether any stage keeps state that grows.
  explicit StateLedger(bool pages) : pages_(pages) {}
  StateLedger(const StateLedger&) = delete;
  StateLedger& operator=(const StateLedger&) = delete;

  // All throw bad_input for a sequence that does not live.
  void create(SequenceId sequence, TokenCount consumed = TokenCount(0));
  void fork(SequenceId sequence, SequenceId as);
  // `rows` further tokens; checkpoints[i] is the sequence at the i-th offset (ascending, in (0, rows]).
  void extend(SequenceId sequence, int64_t rows, std::span<const int64_t> offsets, std::span<const SequenceId> checkpoints);
  void release(SequenceId sequence);

  [[nodiscard]] TokenCount consumed(SequenceId sequence) const { return at(sequence).consumed; }
  [[nodiscard]] StateUse held() const { return held_; }
  // Held by these sequences; what they share counts once.
  [[nodiscard]] StateUse held_by(std::span<const SequenceId> sequences) const;
  // Held by a sequence of that many tokens that shares nothing.
  [[nodiscard]] StateUse whole(TokenCount tokens) const { return {tokens.value > 0 ? 1 : 0, pages_of(tokens)}; }
  // What extend() with that many checkpoints inside the rows (not behind the last one) would add to held().
  [[nodiscard]] StateUse needed(SequenceId sequence, int64_t rows, int64_t inner_checkpoints) const;

 private:
  // A slot or page; `count` counts those that exist.
  struct Block {
    explicit Block(int64_t& counter) : count(counter) { ++count; }
    ~Block() { --count; }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    int64_t& count;
  };
  struct Sequence {
    TokenCount consumed;
    std::shared_ptr<Block> slot;  // once a token was consumed
    std::vector<std::shared_ptr<Block>> pages;
  };

  [[nodiscard]] const Sequence& at(SequenceId sequence) const;
  [[nodiscard]] int64_t pages_of(TokenCount tokens) const;
  [[nodiscard]] static bool owns_slot(const Sequence& sequence);
  [[nodiscard]] static bool writes_shared_page(const Sequence& sequence);

  bool pages_;
  StateUse held_;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace weft
