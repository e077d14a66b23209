// What the machine can do: bandwidth of memory and peak arithmetic.
#pragma once

#include <cstdint>
#include <string>

#include "base/worker_pool.h"
#include "engine/bench/record.h"
#include "tensor/tensor.h"

namespace weft::bench {

[[nodiscard]] int64_t last_level_cache_bytes();  // 0 if the system does not say

// Bytes of a buffer that no cache holds: twice the last level, 256 MiB at least.
[[nodiscard]] int64_t memory_sweep_bytes();

// Reads a buffer of `bytes` with the pool's threads in vector loads, nothing written. The pool has to outlive it.
class ReadSweep {
 public:
  ReadSweep(WorkerPool& pool, int64_t bytes);
  [[nodiscard]] std::string name() const;  // "read, 2 threads"
  // GB/s, each over the calls that `least_seconds` have room for.
  [[nodiscard]] Samples rates(int repeats, double least_seconds) const;

 private:
  WorkerPool& pool_;
  Tensor buffer_;
};

// GB/s of one such sweep.
[[nodiscard]] Figure read_bandwidth(WorkerPool& pool, int64_t bytes, int repeats);
// The same with the buffer copied; what is read and what is written both count.
[[nodiscard]] Figure copy_bandwidth(WorkerPool& pool, int64_t bytes, int repeats);
// GFLOP/s of float32 fused multiply-adds on registers, two operations each.
[[nodiscard]] Figure peak_arithmetic(WorkerPool& pool, int repeats);

// All three with 1, 2, 4, ... and `threads` threads.
[[nodiscard]] Record bench_mem(int threads, int repeats);

}  // namespace weft::bench
