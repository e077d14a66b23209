// Host tensors: contiguous, row-major, typed at run time.
//
//     Tensor x = Tensor::zeros(DType::f32, {rows, hidden});   // owns its memory, 64-byte aligned
//     x.view().as<float>()[i] = 1.0F;
//     TensorView w = {DType::bf16, {out, in}, mapped_bytes};  // looks at memory of another owner
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace weft {

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

// A read-only look at a tensor. The memory belongs to somebody else and outlives the view.
struct TensorView {
  DType dtype = DType::f32;
  Shape shape;
  const std::byte* data = nullptr;

  [[nodiscard]] int64_t elements() const { return shape.elements(); }
  [[nodiscard]] int64_t bytes() const { return elements() * size_of(dtype); }

  // The elements as T; an internal error when the dtype is another.
  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    if (dtype != DTypeOf<T>::value)
      fail(ErrorKind::internal, "tensor", "wanted {}, found {} {}", DTypeOf<T>::value, dtype, shape);
    return {reinterpret_cast<const T*>(data), static_cast<size_t>(elements())};
  }
};

// A writable look at a tensor of another owner.
struct MutableTensorView {
  DType dtype = DType::f32;
  Shape shape;
  std::byte* data = nullptr;

  [[nodiscard]] int64_t elements() const { return shape.elements(); }
  [[nodiscard]] int64_t bytes() const { return elements() * size_of(dtype); }
  operator TensorView() const { return {dtype, shape, data}; }  // NOLINT(google-explicit-constructor): a writer may read

  template <class T>
  [[nodiscard]] std::span<T> as() const {
    const std::span<const T> same = TensorView(*this).as<T>();
    return {const_cast<T*>(same.data()), same.size()};
  }
};

// An owning tensor. Copying copies the elements; use shared_ptr<const Tensor> to share.
class Tensor {
 public:
  Tensor() = default;
  [[nodiscard]] static Tensor zeros(DType dtype, const Shape& shape);
  [[nodiscard]] static Tensor uninitialized(DType dtype, const Shape& shape);
  [[nodiscard]] static Tensor copy_of(const TensorView& view);
  // Stands for memory of another owner, which outlives it and may lie on a device. Not to be copied, nor read on the host then.
  [[nodiscard]] static Tensor borrowed(const MutableTensorView& view);

  Tensor(const Tensor& other) : Tensor(copy_of(other.view())) {}
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(const Tensor& other) { return *this = copy_of(other.view()); }
  Tensor& operator=(Tensor&&) noexcept = default;
  ~Tensor() = default;

  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] int64_t elements() const { return view_.elements(); }
  [[nodiscard]] int64_t bytes() const { return view_.bytes(); }

  template <class T>
  [[nodiscard]] std::span<const T> as() const {
    return view_.as<T>();
  }
  template <class T>
  [[nodiscard]] std::span<T> as() {
    const std::span<const T> same = view_.as<T>();
    return {const_cast<T*>(same.data()), same.size()};
  }
  [[nodiscard]] MutableTensorView mutable_view() { return {view_.dtype, view_.shape, memory_.get()}; }
  [[nodiscard]] std::byte* data() { return memory_.get(); }

 private:
  struct Free {
    bool owned;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_{nullptr, Free{true}};
  TensorView view_{DType::f32, Shape{0}, nullptr};
};

}  // namespace weft
