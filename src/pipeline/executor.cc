#include "pipeline/executor.h"

#include <utility>

#include "base/error.h"
#include "model/state_file.h"

namespace weft {

std::vector<RowsResult> Executor::run(Step step) {
  const Ticket ticket = submit(std::move(step));
  Completion completion = next();
  if (completion.ticket != ticket) {
    fail(ErrorKind::internal, "executor", "wanted the completion of step {}, found that of step {}", ticket, completion.ticket);
  }
  if (completion.failure) completion.failure->raise();
  return std::move(completion.results);
}

void Executor::save(SequenceId sequence, const std::filesystem::path& path, std::span<const int32_t> ids) {
  const SavedState state = snapshot(sequence, ids);
  write_state_file(path, state.header, state.tensors);
}

SequenceId Executor::load(const std::filesystem::path& path) { return restore(StateFile(path)); }

}  // namespace weft
