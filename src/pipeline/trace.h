// The trace of a forward pass: what `weft trace` writes (ruling R17), `weft check` reads and the tests compare with goldens.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/trace.h"
#include "pipeline/executor.h"
#include "tensor/tensor.h"

namespace weft {

// Collects the rows that stages record, chunk after chunk, into whole tensors.
class TraceCollector final : public TraceSink {
 public:
  // Once `cancelled` is set, record() throws unavailable, which ends the step.
  explicit TraceCollector(const std::atomic<bool>* cancelled = nullptr) : cancelled_(cancelled) {}

  void record(TracePoint point, LayerIndex layer, TensorView rows) override;
  // [T, n] of everything recorded for the point; an internal error when nothing was.
  [[nodiscard]] Tensor rows(TracePoint point, LayerIndex layer) const;
  [[nodiscard]] bool has(TracePoint point, LayerIndex layer) const;

 private:
  struct Recorded {
    int64_t width = 0;
    std::vector<float> values;
  };
  const std::atomic<bool>* cancelled_;
  mutable std::mutex mutex_;
  std::map<std::pair<TracePoint, LayerIndex>, Recorded> recorded_;  // guarded by mutex_
};

struct Trace {
  Tensor logits;          // [T, V]
  Tensor hidden;          // [L+1, T, D]: the embedding, then each layer's output
  Tensor mean_abs;        // [L+1]: mean absolute value of each of those
  Tensor layer_mean_abs;  // [L, 6]: attn_in, attn_out, after_attn, mlp_in, mlp_out, out
  Tensor final_mean_abs;  // [3]: embed, mixed, final_norm
};

// Runs `ids` from an empty sequence in steps of at most `chunk` tokens. Throws what the steps threw.
[[nodiscard]] Trace run_trace(Executor& executor, std::span<const int32_t> ids, int64_t chunk, TraceCollector& collector);

// Writes logits, hidden, mean_abs and, where `residual_blocks`, trace.mean_abs and trace.final_mean_abs (ruling R17).
void write_trace(const std::filesystem::path& path, const Trace& trace, bool residual_blocks);

}  // namespace weft
