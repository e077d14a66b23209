#include "ops/suite/device_operands.h"

namespace weft::ops {

DeviceOperands::DeviceOperands(const CaseSpec& spec, const Case& of, Device& device, Workspace& workspace) : device_(device) {
  host_.reserve(of.tensors.size());
  for (const CaseTensor& tensor : of.tensors) {
    const TensorView values = tensor.initial.view();
    if (spec.op == "sample" && tensor.role == Role::input && values.dtype == DType::i32) {
      views_.push_back(host_.emplace_back(Tensor::copy_of(values)).mutable_view());
      continue;
    }
    views_.push_back(workspace.take(values.shape, values.dtype));
    device.upload(views_.back().data, values.data, values.bytes());
  }
}

Tensor DeviceOperands::fetch(size_t index) const { return device_.fetch(views_[index]); }

}  // namespace weft::ops
