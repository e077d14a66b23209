// Sees to it that the values of a step are finite, and says where the first is that is not: its weights hold it, or one of
// theirs overflowed, or a saved state did.
//
//     watch.begin();                                     // a step
//     watch.look(context, batch, layer, place, rows);    // after each sub-layer; in host memory it throws
//     watch.end();
//     watch.settle(batch);                               // once the step's results are there; with a GPU this throws
//
// On a GPU nothing waits until settle(): begin() to end() are work in the device's queue. The note travels to the host behind
// the step's last layer.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "model/batch.h"
#include "ops/context.h"
#include "ops/first_not_finite.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace weft {

class FiniteWatch {
 public:
  enum class Place : uint8_t { attention, mlp };

  explicit FiniteWatch(Device& device) : device_(device) {}  // which outlives the watch

  void begin();  // the first one takes memory, and is not recorded
  // rows [T, D] of the running sum. In host memory: throws bad_checkpoint naming place and position; the layer is
  // named by whoever runs it.
  void look(ops::Context& context, const Batch& batch, LayerIndex layer, Place place, TensorView rows);
  void end();
  // GPU: waits for the device and throws what look() throws in host memory. `batch` is that of the step.
  void settle(const Batch& batch);

 private:
  [[nodiscard]] Error fault(const Batch& batch, const ops::NotFinite& found) const;

  Device& device_;
  int64_t width_ = 1;  // D
  // One code each (ops/first_not_finite.h).
  std::byte* first_ = nullptr;  // of the device
  std::byte* none_ = nullptr;   // of the device: kAllFinite
  std::byte* here_ = nullptr;   // of the host
};

}  // namespace weft
