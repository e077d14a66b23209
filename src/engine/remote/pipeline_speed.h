// What a pipeline costs and gains: overlap, one hop, and several stages against one on the same cores.
#pragma once

#include <filesystem>

#include "engine/bench/record.h"
#include "engine/executor_loader.h"

namespace weft::bench {

struct PipelineOptions {
  ModelOptions model;             // on the CPU
  std::filesystem::path program;  // weft, whose workers are started
  int64_t stages = 4;
  int64_t requests = 8;  // side by side
  int64_t tokens = 32;   // that each decodes in a repeat
  int repeats = 5;
};

// - "20 micro-batches, 2 stages of 10 ms, 8 ms of transfer" (ms): stages in this process that sleep 10 ms in each step beside
// their
//   work, and a link that takes 8 ms for a boundary. Limit: 21 x 10 + 8 ms (distributed.md 6.5).
// - "hop of R rows" (us): a boundary of Kimi K3 (4 planes of 7168, bf16) from its tensors to the tensors of the next stage over
//   gRPC on 127.0.0.1 without TLS: packed, framed, sent, taken apart; half of there and back. Limit: its bytes over the speed
//   of memcpy in the same run.
// - "decode, S stages" and "decode, 1 stage" (tokens/s): worker processes that share the cores, against one process with all of
// them.
[[nodiscard]] Record bench_pipeline(const PipelineOptions& options);

}  // namespace weft::bench
