// The state of one sequence on one stage: an owning handle that knows how many tokens it has consumed.
//
//     SequenceState state(pool);
//     RowGroup group = state.extend(first_row, rows);   // reserves memory; the count does not change yet
//     stage.forward(context, batch, ...);
//     state.commit();                                   // now state.consumed() has grown by `rows`
//
// The count moves only with a committed step, so a state cannot be filed under a token count that it has not consumed
// (cases.md C2 and C4 are what happens otherwise). After a failed step call fail_step(): the state stays usable if the step
// wrote to memory of its own, and refuses further use if it may have been half overwritten.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/batch.h"
#include "model/state_pool.h"
#include "tensor/tensor.h"

namespace weft {

class SequenceState {
 public:
  explicit SequenceState(StatePool& pool) : pool_(&pool) {}  // empty: consumed() == 0; the pool outlives the handle
  ~SequenceState();
  SequenceState(SequenceState&& other) noexcept;
  SequenceState& operator=(SequenceState&& other) noexcept;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  [[nodiscard]] TokenCount consumed() const { return consumed_; }
  [[nodiscard]] const std::string& fingerprint() const { return pool_->fingerprint(); }
  [[nodiscard]] LayerRange layers() const { return pool_->layout().layers(); }

  // Another handle at the same token count. Copies nothing: the first of the two to go on writes to memory of its own.
  [[nodiscard]] SequenceState fork() const;

  // Reserves what `rows` further tokens need and describes them for a batch. Checkpoint offsets are ascending, in (0, rows];
  // the one behind the last row is a fork and not part of the batch. Throws `unavailable` when the pool is full; the state is
  // then unchanged.
  [[nodiscard]] RowGroup extend(int64_t first_row, int64_t rows, std::span<const int64_t> checkpoint_offsets = {});
  // The step of the last extend() is done: its rows are consumed. Returns the state at each checkpoint offset.
  std::vector<SequenceState> commit();
  // The step of the last extend() failed.
  void fail_step() noexcept;

  // The canonical saved form: safetensors names "layers.{l}.{name}" -> float32 tensors; growing state has [consumed, width].
  using Tensors = std::map<std::string, Tensor>;
  [[nodiscard]] Tensors export_tensors() const;
  // The state of `consumed` tokens from tensors in that form, which may hold further layers (another stage split).
  // Throws bad_input naming both numbers of layers when some of the pool's are not there, else the tensor, what was wanted and
  // what was found.
  [[nodiscard]] static SequenceState import_tensors(StatePool& pool, TokenCount consumed,
                                                    const std::map<std::string, TensorView>& tensors);

 private:
  struct Step {
    int64_t rows = 0;
    SlotId slot_out;
    bool own_slot = false;          // slot_out is not the slot that was read
    std::vector<PageId> pages;      // the block table with the step's new pages
    std::vector<PageId> new_pages;  // references taken for the step
    std::vector<PageId> replaced;   // shared pages that a copy stands in for
    std::vector<CheckpointSlot> checkpoints;
    bool keep_end = false;  // a checkpoint behind the last row
  };

  void check_usable() const;
  void drop() noexcept;
  void undo(Step& step) noexcept;

  StatePool* pool_;
  TokenCount consumed_;
  std::optional<SlotId> slot_;  // holds a value once a token was consumed
  std::vector<PageId> pages_;
  std::optional<Step> step_;
  bool broken_ = false;
};

}  // namespace weft
