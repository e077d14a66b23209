// What an executor knows of its sequences when a decision is taken: their ids, the tokens they will have consumed, and whether
// a step may go on from them. The same for stages in this process and for stages elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/stage_runner.h"
#include "pipeline/state_ledger.h"

namespace weft {

class SequenceBook {
 public:
  explicit SequenceBook(bool pages) : ledger_(pages) {}  // `pages`: whether any stage keeps state that grows

  [[nodiscard]] SequenceId new_id() { return SequenceId(next_sequence_++); }
  [[nodiscard]] StateLedger& ledger() { return ledger_; }
  [[nodiscard]] const StateLedger& ledger() const { return ledger_; }

  // Takes the decision: the sequences have consumed the rows, and each checkpoint is a sequence. Throws bad_input for an empty
  // step or rows, an unknown sequence, one named twice, and sampling parameters; nothing has changed then.
  [[nodiscard]] StageStep take(Step step);

 private:
  StateLedger ledger_;
  int64_t next_sequence_ = 1;
};

}  // namespace weft
