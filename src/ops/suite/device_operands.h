// The operands of a case in the memory of a GPU: the counterpart of HostOperands.
#pragma once

#include <vector>

#include "ops/suite/suite.h"
#include "tensor/workspace.h"

namespace weft::ops {

// What a case's call reads on the host stays there: all that `sample` takes beside logits (its requests).
class DeviceOperands {
 public:
  // Takes memory from `workspace`, whose scope outlives the operands.
  DeviceOperands(const CaseSpec& spec, const Case& of, Device& device, Workspace& workspace);

  [[nodiscard]] Operands operands() const { return views_; }
  // The operand's values now, on the host. Waits for the device.
  [[nodiscard]] Tensor fetch(size_t index) const;

 private:
  Device& device_;
  std::vector<Tensor> host_;
  std::vector<MutableTensorView> views_;
};

}  // namespace weft::ops
