// What the machine can do: bandwidth of memory and peak arithmetic.
#pragma once

#include <cstdint>

#include "base/worker_pool.h"
#include "engine/bench/record.h"

namespace weft::bench {

[[nodiscard]] int64_t last_level_cache_bytes();  // 0 if the system does not say

// Bytes of a buffer that no cache holds: twice the last level, 256 MiB at least.
[[nodiscard]] int64_t memory_sweep_bytes();

// GB/s of reading a buffer of `bytes` with the pool's threads in vector loads, nothing written.
[[nodiscard]] Figure read_bandwidth(WorkerPool& pool, int64_t bytes, int repeats);
// The same with the buffer copied; what is read and what is written both count.
[[nodiscard]] Figure copy_bandwidth(WorkerPool& pool, int64_t bytes, int repeats);
// GFLOP/s of float32 fused multiply-adds on registers, two operations each.
[[nodiscard]] Figure peak_arithmetic(WorkerPool& pool, int repeats);

// All three with 1, 2, 4, ... and `threads` threads.
[[nodiscard]] Record bench_mem(int threads, int repeats);

}  // namespace weft::bench
