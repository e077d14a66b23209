// What the engine talks to: a model that takes steps and gives back sampled tokens, wherever its stages run.
//
// Contract:
// - A sequence lives on all stages of the executor. Its id is never reused.
// - submit() returns at once; steps run in the order of submission; several may be open. next() returns their completions in
//   that order.
// - A step that fails fails as a whole: its completion holds the failure, and its sequences refuse further steps (their states
//   may differ between stages). Other sequences go on.
// - All members but trouble() may be called from one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/guard.h"
#include "base/units.h"
#include "model/routing.h"
#include "model/stage.h"
#include "model/state_file.h"
#include "model/trace.h"
#include "ops/sample.h"
#include "pipeline/state_ledger.h"
#include "tensor/tensor.h"

namespace weft {

using Ticket = Strong<struct TicketTag>;

// How the token after the last row is drawn.
struct SampleRequest {
  ops::SamplingParams params;
  std::vector<int32_t> prompt;           // ids of the prompt; only the repetition penalty counts them
  std::vector<int32_t> history;          // generated ids so far, for the penalties
  std::vector<int32_t> never_penalised;  // ascending
  std::vector<ops::LogitBias> bias;      // each id once, ascending
  int64_t top = 0;                       // so many of the most likely ids are given beside the drawn one
  std::vector<uint32_t> allowed;         // bit mask of allowed ids; empty: all
  // Takes the place of `allowed` when valid: a mask that is computed beside the step and waited for at the draw.
  std::shared_future<std::vector<uint32_t>> mask;
};

// The next tokens of one sequence.
struct Rows {
  SequenceId sequence;
  std::vector<int32_t> ids;                                               // at least one
  enum class Logits : uint8_t { none, last, all } logits = Logits::none;  // which rows' logits come back
  std::optional<SampleRequest> sample;                                    // draw the token after the last row
  std::vector<int64_t> checkpoints;  // offsets in (0, ids.size()], ascending: keep the state there as a sequence of its own
};

struct Step {
  std::vector<Rows> rows;            // each sequence at most once
  TraceSink* trace = nullptr;        // in-process executors only; outlives the step
  const Routing* routing = nullptr;  // experts to take instead of the router's choice; likewise
};

struct RowsResult {
  Tensor logits;  // [0, 1 or all rows, V] float32
  std::optional<ops::Sampled> sampled;
  std::vector<ops::Sampled> top;        // as SampleRequest::top asks: most likely first, of the raw logits
  std::vector<SequenceId> checkpoints;  // as asked for
};

// What sequence states cost, over all stages.
struct StateMemory {
  StateUse limits;  // most that a stage holds at once
  ByteCount slot_bytes;
  ByteCount page_bytes;

  [[nodiscard]] ByteCount bytes(StateUse use) const {
    return ByteCount(use.slots * slot_bytes.value + use.pages * page_bytes.value);
  }
};

struct Completion {
  Ticket ticket;
  std::optional<Failure> failure;
  std::vector<RowsResult> results;  // in the order of Step::rows; empty after a failure
};

class Executor {
 public:
  virtual ~Executor() = default;

  [[nodiscard]] virtual int64_t layer_count() const = 0;
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  [[nodiscard]] virtual int64_t stage_count() const = 0;
  // Of model, profile and state dtypes (model/fingerprint.h).
  [[nodiscard]] virtual const std::string& fingerprint() const = 0;
  // Weight bytes that one decoded token of one sequence reads, over all stages.
  [[nodiscard]] virtual ByteCount bytes_per_token() const = 0;
  [[nodiscard]] virtual StateMemory state_memory() const = 0;
  // What all sequences hold once everything that was submitted is done.
  [[nodiscard]] virtual const StateLedger& states() const = 0;
  // Over all stages, once all submitted steps are done.
  [[nodiscard]] virtual MemoryUse memory() = 0;

  // Why no request can be served now: stages are lost or are being connected. Any thread.
  [[nodiscard]] virtual std::optional<Failure> trouble() const { return std::nullopt; }

  [[nodiscard]] virtual SequenceId create() = 0;                   // empty
  [[nodiscard]] virtual SequenceId fork(SequenceId sequence) = 0;  // at the same token count; copies nothing
  virtual void release(SequenceId sequence) = 0;
  // Tokens that the sequence has consumed once all submitted steps are done; meaningless after one of them failed.
  [[nodiscard]] virtual TokenCount consumed(SequenceId sequence) const = 0;

  // Throws bad_input for an unknown sequence, an empty step or a sequence named twice. A step of a failed sequence completes
  // with a failure.
  virtual Ticket submit(Step step) = 0;
  [[nodiscard]] virtual Completion next() = 0;

  // The state in its saved form, a copy. Waits for the sequence's steps. `ids`: the tokens that the sequence has consumed, kept
  // beside its state, or empty.
  [[nodiscard]] virtual SavedState snapshot(SequenceId sequence, std::span<const int32_t> ids) = 0;
  // A sequence with the state of a file, which may come from any stage split of the same model and profile.
  [[nodiscard]] virtual SequenceId restore(const StateFile& file) = 0;
  // The same to and from a file.
  void save(SequenceId sequence, const std::filesystem::path& path, std::span<const int32_t> ids);
  [[nodiscard]] SequenceId load(const std::filesystem::path& path);

  // One step, waited for; its failure is thrown. No other step may be open.
  std::vector<RowsResult> run(Step step);
};

}  // namespace weft
