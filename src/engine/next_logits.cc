#include "engine/next_logits.h"

#include <algorithm>

#include "base/error.h"
#include "engine/owned_sequence.h"

namespace weft {

std::vector<float> next_logits(Executor& executor, std::span<const int32_t> ids, int64_t chunk) {
  if (ids.empty() || chunk < 1) fail(ErrorKind::bad_input, "logits", "wanted at least one id and a chunk of at least 1");
  const OwnedSequence sequence(executor);
  std::vector<RowsResult> results;
  while (!ids.empty()) {
    const auto part = ids.first(std::min(ids.size(), static_cast<size_t>(chunk)));
    ids = ids.subspan(part.size());
    Step step;
    Rows& rows = step.rows.emplace_back();
    rows.sequence = sequence.id();
    rows.ids.assign(part.begin(), part.end());
    rows.logits = ids.empty() ? Rows::Logits::last : Rows::Logits::none;
    results = executor.run(std::move(step));
  }
  const std::span<const float> logits = results.front().logits.view().as<float>();
  return {logits.begin(), logits.end()};
}

}  // namespace weft
