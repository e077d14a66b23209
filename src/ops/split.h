// How operators split work over the threads of the pool. Results never depend on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/context.h"

namespace weft::ops {

// Items per task for `count` items of about `cost` scalar operations each: a task is worth the wake-up of a thread, and there
// are several tasks per thread where the work allows, so that a late thread delays the others little.
[[nodiscard]] inline int64_t task_grain(const Context& context, int64_t count, int64_t cost) {
  constexpr int64_t kMinTaskCost = 1 << 16;
  constexpr int64_t kTasksPerThread = 8;
  const int64_t worth = (kMinTaskCost + std::max<int64_t>(cost, 1) - 1) / std::max<int64_t>(cost, 1);
  const int64_t tasks = context.pool->threads() * kTasksPerThread;
  return std::max<int64_t>({worth, (count + tasks - 1) / tasks, 1});
}

// The same for outputs of a dense product of `cost` multiply-adds each: whole tiles of 16 outputs. Vector units do about 16 at
// a time; one row reads its weight from memory, which brings enough for 2 (bf16) to 9 (MXFP4).
[[nodiscard]] inline TaskSizes dense_tasks(const Context& context, int64_t outputs, int64_t cost) {
  constexpr int64_t kTile = 16;
  return {.most = (task_grain(context, outputs, cost / 4) + kTile - 1) / kTile * kTile, .unit = kTile};
}

}  // namespace weft::ops
