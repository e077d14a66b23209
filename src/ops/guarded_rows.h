// Rows that may fail, in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/guard.h"
#include "ops/context.h"

namespace weft::ops {

// Calls body(row) for each of [0, rows), `grain` rows a task, and raises the error of the first faulty row, whichever thread
// meets one first.
template <class Body>
void for_each_row(Context& context, int64_t rows, int64_t grain, const Body& body) {
  std::vector<std::optional<Failure>> failures(static_cast<size_t>(rows));
  context.pool->parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) failures[static_cast<size_t>(row)] = guard([&] { body(row); });
  });
  for (const std::optional<Failure>& failure : failures) {
    if (failure) failure->raise();
  }
}

}  // namespace weft::ops
