// Helpers of the operator tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/worker_pool.h"
#include "ops/ops.h"
#include "ops/suite/random.h"
#include "ops/suite/weight_form.h"
#include "parallel/communicator.h"
#include "tensor/bf16.h"
#include "tensor/tensor.h"

namespace weft::ops {

// A context with everything it points to.
struct TestContext {
  explicit TestContext(Backend backend, Profile profile = Profile::exact, int threads = 1) : pool(threads) {
    context.backend = backend;
    context.profile = profile;
    context.pool = &pool;
    context.comm = &comm;
  }
  operator Context&() { return context; }  // NOLINT(google-explicit-constructor): stands for the context

  WorkerPool pool;
  SingleRank comm;
  Context context;
};

inline Tensor f32(const Shape& shape, std::initializer_list<float> values) {
  Tensor tensor = Tensor::zeros(DType::f32, shape);
  EXPECT_EQ(static_cast<size_t>(shape.elements()), values.size());
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

// Values in [-range, range]; `as_bf16` rounds them as the activations of profile bf16 are.
inline Tensor random(Random& random, const Shape& shape, double range = 1.0, bool as_bf16 = false) {
  Tensor tensor = Tensor::zeros(DType::f32, shape);
  for (float& value : tensor.as<float>()) {
    value = static_cast<float>(random.uniform(-range, range));
    if (as_bf16) value = bf16_to_f32(f32_to_bf16(value));
  }
  return tensor;
}

inline Tensor empty(const Shape& shape) { return Tensor::zeros(DType::f32, shape); }

// Rows [begin, end) of a matrix.
inline TensorView rows_of(const Tensor& tensor, int64_t begin, int64_t end) {
  const int64_t size = tensor.shape()[1] * size_of(tensor.dtype());
  return {tensor.dtype(), {end - begin, tensor.shape()[1]}, tensor.view().data + begin * size};
}
inline MutableTensorView rows_of(Tensor& tensor, int64_t begin, int64_t end) {
  const int64_t size = tensor.shape()[1] * size_of(tensor.dtype());
  return {tensor.dtype(), {end - begin, tensor.shape()[1]}, tensor.data() + begin * size};
}

// A stored weight that owns its bytes. The bytes start at an odd address: files promise no alignment.
struct TestWeight {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<std::byte> biases;
  WeightView shape;
  [[nodiscard]] WeightView view() const {
    WeightView view = shape;
    view.data = data.data() + 1;
    if (!scales.empty()) view.scales = scales.data() + 1;
    if (!biases.empty()) view.biases = biases.data() + 1;
    return view;
  }
};

inline TestWeight random_weight(Random& random, const suite::WeightForm& form, int64_t out, int64_t in) {
  TestWeight weight;
  weight.shape = form.shape(out, in);
  weight.data.resize(static_cast<size_t>(1 + weight.shape.data_bytes()));
  if (weight.shape.scale_bytes() > 0) weight.scales.resize(static_cast<size_t>(1 + weight.shape.scale_bytes()));
  if (weight.shape.bias_bytes() > 0) weight.biases.resize(static_cast<size_t>(1 + weight.shape.bias_bytes()));
  if (form.quantized()) {
    suite::fill_quantized(random, weight.shape, weight.data.data() + 1, weight.scales.data() + 1, weight.biases.data() + 1);
    return weight;
  }
  if (form.format == WeightFormat::mxfp4) {
    for (std::byte& b : weight.data) b = static_cast<std::byte>(random.bits() >> 56);
    for (std::byte& b : weight.scales) b = static_cast<std::byte>(122 + (random.bits() >> 62));
    return weight;
  }
  const int64_t size = form.format == WeightFormat::f32 ? 4 : 2;
  for (int64_t i = 0; i < out * in; ++i) {
    const auto value = static_cast<float>(random.uniform(-0.5, 0.5));
    const uint16_t rounded = f32_to_bf16(value);
    if (size == 4) std::memcpy(weight.data.data() + 1 + i * 4, &value, 4);
    if (size == 2) std::memcpy(weight.data.data() + 1 + i * 2, &rounded, 2);
  }
  return weight;
}

// A stored float32 weight of given values.
inline TestWeight f32_weight(int64_t out, int64_t in, const std::vector<float>& values) {
  TestWeight weight;
  weight.shape = suite::WeightForm(WeightFormat::f32).shape(out, in);
  weight.data.resize(1 + values.size() * 4);
  std::memcpy(weight.data.data() + 1, values.data(), values.size() * 4);
  return weight;
}

inline void expect_values(const Tensor& found, std::initializer_list<double> wanted, double tolerance) {
  ASSERT_EQ(found.as<float>().size(), wanted.size());
  size_t i = 0;
  for (const double value : wanted) {
    EXPECT_NEAR(found.as<float>()[i], value, tolerance * std::max(1.0, std::fabs(value))) << "element " << i;
    ++i;
  }
}

inline void expect_same_bits(const TensorView& a, const TensorView& b, const char* what) {
  ASSERT_EQ(a.bytes(), b.bytes());
  if (a.bytes() == 0) return;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << what;
}

// max |a - b| <= tolerance * max |b|, the project's meaning of "relative".
inline void expect_close(const TensorView& a, const TensorView& b, double tolerance, const char* what) {
  const std::span<const float> x = a.as<float>();
  const std::span<const float> y = b.as<float>();
  ASSERT_EQ(x.size(), y.size());
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_FALSE(std::isnan(x[i])) << what << ", element " << i;
    error = std::max(error, std::fabs(static_cast<double>(x[i]) - y[i]));
    size = std::max(size, std::fabs(static_cast<double>(y[i])));
  }
  EXPECT_LE(error, tolerance * size) << what << ": error " << error << ", largest value " << size;
}

}  // namespace weft::ops
