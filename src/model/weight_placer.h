// Brings weights to where a stage computes. In host memory they stay where they are (mapped files); to a GPU they are copied,
// in the form in which they are stored, or stand-ins of the same form are made there (`dummy`), so that a geometry can be
// measured with a checkpoint of headers and holes.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "ops/weight.h"
#include "tensor/device.h"

namespace weft {

class WeightPlacer {
 public:
  // Stand-ins are made on a GPU only.
  WeightPlacer(std::shared_ptr<Device> device, bool dummy);

  [[nodiscard]] bool dummy() const { return dummy_; }
  [[nodiscard]] ops::WeightView place(const ops::WeightView& weight) const;
  [[nodiscard]] Tensor place(Tensor tensor) const;
  // A table of views, for kernels that choose among them. GPU only.
  [[nodiscard]] const ops::ExpertView* place(std::span<const ops::ExpertView> experts) const;

 private:
  [[nodiscard]] std::byte* copy(const std::byte* data, int64_t bytes) const;
  [[nodiscard]] std::byte* make(int64_t bytes, uint32_t keep, uint32_t set) const;

  std::shared_ptr<Device> device_;
  bool dummy_;
};

}  // namespace weft
