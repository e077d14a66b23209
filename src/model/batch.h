// One forward step of a stage: rows of one or more sequences, prefill and decode mixed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "model/routing.h"
#include "model/trace.h"

namespace weft {

class StatePool;

// A copy of the recurrent state after `offset` rows of a group, written to `slot`.
struct CheckpointSlot {
  int64_t offset = 0;  // in (0, row_count)
  SlotId slot;
};

// Rows [first_row, first_row + row_count) of the batch are the next tokens of one sequence. Made by SequenceState::extend only.
struct RowGroup {
  int64_t first_row = 0;
  int64_t row_count = 0;
  TokenCount start;                         // tokens consumed before these rows
  std::optional<SlotId> slot_in;            // absent: the sequence is empty (zero state)
  SlotId slot_out;                          // equal to slot_in, or another for a fork
  std::vector<PageId> pages;                // block table over positions [0, start + row_count)
  std::vector<CheckpointSlot> checkpoints;  // ascending offsets
  const StatePool* pool = nullptr;          // whose slots and pages these are
};

struct Batch {
  std::vector<int32_t> ids;          // [T]
  std::vector<RowGroup> groups;      // cover rows 0..T-1 in order
  std::vector<int64_t> logits_rows;  // batch rows whose logits the last stage computes
  TraceSink* trace = nullptr;        // in-process only; outlives the step
  const Routing* routing = nullptr;  // experts to take instead of the router's choice; likewise

  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(ids.size()); }
};

}  // namespace weft
