// The trace of a forward pass: what `weft trace` writes, `weft check` reads and compares with another run, and the tests
// compare with goldens.
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

#include "model/routing.h"
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
  // [T, n] of everything recorded for the point, n = 1 for a point of one value per token; an internal error when nothing was.
  [[nodiscard]] Tensor rows(TracePoint point, LayerIndex layer) const;
  [[nodiscard]] bool has(TracePoint point, LayerIndex layer) const;

 private:
  struct Recorded {
    DType dtype = DType::f32;
    int64_t width = 0;
    std::vector<std::byte> bytes;
  };
  const std::atomic<bool>* cancelled_;
  mutable std::mutex mutex_;
  std::map<std::pair<TracePoint, LayerIndex>, Recorded> recorded_;  // guarded by mutex_
};

struct Trace {
  std::vector<int32_t> ids;  // [T]
  Tensor logits;             // [T, V]
  Tensor hidden;             // [L+1, T, D]: the embedding, then each layer's output
  Tensor mean_abs;           // [L+1]: mean absolute value of each of those
  Tensor layer_mean_abs;     // [L, 6]: attn_in, attn_out, after_attn, mlp_in, mlp_out, out
  Tensor final_mean_abs;     // [3]: embed, mixed, final_norm
  Routing routing;           // what the routers chose, also where the run took other experts
};

struct TraceOptions {
  int64_t chunk = 512;               // tokens of one step at most
  const Routing* routing = nullptr;  // experts to take instead of the routers' choice
};

// Runs `ids` from an empty sequence; `collector` is fresh. Throws what the steps threw.
[[nodiscard]] Trace run_trace(Executor& executor, std::span<const int32_t> ids, const TraceOptions& options,
                              TraceCollector& collector);

// The trace of a run of `layers` layers over `ids` whose points `collector` holds.
[[nodiscard]] Trace make_trace(std::span<const int32_t> ids, int64_t layers, Tensor logits, const TraceCollector& collector);

// Writes logits, hidden, mean_abs and, where `residual_blocks`, trace.mean_abs and trace.final_mean_abs (ruling R17); and what
// a comparison needs: ids [T] and, of each layer l with a router, layers.{l}.experts and .expert_weights [T, k] and
// .router_margin [T, 1].
void write_trace(const std::filesystem::path& path, const Trace& trace, bool residual_blocks);

// Reads ids, logits, hidden and routing of such a file; the means stay empty. Throws bad_input naming the file and the tensor.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path);

}  // namespace weft
