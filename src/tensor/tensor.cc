#include "tensor/tensor.h"

#include <cstring>
#include <new>

namespace weft {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Tensor::Free::operator()(std::byte* memory) const {
  if (owned) ::operator delete(memory, kAlignment);
}

Tensor Tensor::uninitialized(DType dtype, const Shape& shape) {
  const std::optional<int64_t> elements = shape.checked_elements();
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, size_of(dtype), &bytes)) {
    fail(ErrorKind::bad_input, "tensor", "wanted a size that fits 63 bits, found {} {}", dtype, shape);
  }
  Tensor made;
  made.memory_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlignment)));
  made.view_ = {dtype, shape, made.memory_.get()};
  return made;
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  Tensor made = uninitialized(dtype, shape);
  std::memset(made.memory_.get(), 0, static_cast<size_t>(made.bytes()));
  return made;
}

Tensor Tensor::borrowed(const MutableTensorView& view) {
  Tensor made;
  made.memory_ = {view.data, Free{false}};
  made.view_ = view;
  return made;
}

Tensor Tensor::copy_of(const TensorView& view) {
  Tensor made = uninitialized(view.dtype, view.shape);
  if (view.bytes() > 0) std::memcpy(made.memory_.get(), view.data, static_cast<size_t>(view.bytes()));
  return made;
}

}  // namespace weft
