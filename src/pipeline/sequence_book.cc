#include "pipeline/sequence_book.h"

#include <set>
#include <utility>

#include "base/error.h"

namespace weft {

StageStep SequenceBook::take(Step step) {
  constexpr std::string_view kPlace = "executor";
  if (step.rows.empty()) fail(ErrorKind::bad_input, kPlace, "wanted rows of at least one sequence, found none");
  std::set<SequenceId> seen;
  for (const Rows& rows : step.rows) {
    (void)ledger_.consumed(rows.sequence);
    if (rows.ids.empty())
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted at least one token, found none", rows.sequence);
    if (!seen.insert(rows.sequence).second) {
      fail(ErrorKind::bad_input, kPlace, "wanted each sequence once in a step, found sequence {} twice", rows.sequence);
    }
    if (rows.sample) rows.sample->params.validate();
  }
  StageStep taken{std::move(step), {}};
  for (const Rows& rows : taken.step.rows) {
    std::vector<SequenceId>& ids = taken.checkpoint_ids.emplace_back();
    for (size_t i = 0; i < rows.checkpoints.size(); ++i) ids.push_back(new_id());
    ledger_.extend(rows.sequence, static_cast<int64_t>(rows.ids.size()), rows.checkpoints, ids);
  }
  return taken;
}

}  // namespace weft
