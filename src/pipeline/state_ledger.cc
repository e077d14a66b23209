#include "pipeline/state_ledger.h"

#include <set>

#include "base/error.h"
#include "model/state_layout.h"

namespace weft {

const StateLedger::Sequence& StateLedger::at(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) fail(ErrorKind::bad_input, "executor", "wanted a live sequence, found id {}", sequence);
  return found->second;
}

int64_t StateLedger::pages_of(TokenCount tokens) const { return pages_ ? pages_for(tokens) : 0; }

bool StateLedger::owns_slot(const Sequence& sequence) { return sequence.slot && sequence.slot.use_count() == 1; }

bool StateLedger::writes_shared_page(const Sequence& sequence) {
  return sequence.consumed.value % ops::kPageTokens != 0 && !sequence.pages.empty() && sequence.pages.back().use_count() > 1;
}

void StateLedger::create(SequenceId sequence, TokenCount consumed) {
  Sequence& made = sequences_[sequence];
  made.consumed = consumed;
  if (consumed > TokenCount(0)) made.slot = std::make_shared<Block>(held_.slots);
  for (int64_t i = 0; i < pages_of(consumed); ++i) made.pages.push_back(std::make_shared<Block>(held_.pages));
}

void StateLedger::fork(SequenceId sequence, SequenceId as) { sequences_.insert_or_assign(as, at(sequence)); }

void StateLedger::extend(SequenceId sequence, int64_t rows, std::span<const int64_t> offsets,
                         std::span<const SequenceId> checkpoints) {
  (void)at(sequence);
  Sequence& now = sequences_.at(sequence);
  const TokenCount start = now.consumed;
  if (writes_shared_page(now)) now.pages.back() = std::make_shared<Block>(held_.pages);
  if (!owns_slot(now)) now.slot = std::make_shared<Block>(held_.slots);
  now.consumed += TokenCount(rows);
  while (static_cast<int64_t>(now.pages.size()) < pages_of(now.consumed)) {
    now.pages.push_back(std::make_shared<Block>(held_.pages));
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    Sequence& kept = sequences_[checkpoints[i]];
    kept.consumed = start + TokenCount(offsets[i]);
    kept.slot = offsets[i] == rows ? now.slot : std::make_shared<Block>(held_.slots);
    kept.pages.assign(now.pages.begin(), now.pages.begin() + pages_of(kept.consumed));
  }
}

void StateLedger::release(SequenceId sequence) {
  (void)at(sequence);
  sequences_.erase(sequence);
}

StateUse StateLedger::held_by(std::span<const SequenceId> sequences) const {
  std::set<const Block*> slots;
  std::set<const Block*> pages;
  for (const SequenceId id : sequences) {
    const Sequence& sequence = at(id);
    if (sequence.slot) slots.insert(sequence.slot.get());
    for (const auto& page : sequence.pages) pages.insert(page.get());
  }
  return {static_cast<int64_t>(slots.size()), static_cast<int64_t>(pages.size())};
}

StateUse StateLedger::needed(SequenceId sequence, int64_t rows, int64_t inner_checkpoints) const {
  const Sequence& now = at(sequence);
  return {
      (owns_slot(now) ? 0 : 1) + inner_checkpoints,
      pages_of(now.consumed + TokenCount(rows)) - static_cast<int64_t>(now.pages.size()) + (writes_shared_page(now) ? 1 : 0)};
}

}  // namespace weft
