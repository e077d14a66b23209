#include "ops/suite/builder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/math.h"
#include "ops/weight_decode.h"

namespace weft::ops::suite {
namespace {

uint64_t hash(std::string_view text, uint64_t value = 0xcbf29ce484222325ULL) {  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return value;
}

// Random bits, 8 bytes at a time, with `keep` of them and `set` added.
void fill(Random& random, Tensor& bytes, uint64_t keep, uint64_t set) {
  const std::span<uint8_t> all = bytes.as<uint8_t>();
  for (size_t at = 0; at < all.size(); at += 8) {
    const uint64_t value = (random.bits() & keep) | set;
    std::memcpy(all.data() + at, &value, std::min<size_t>(8, all.size() - at));
  }
}

}  // namespace

WeightView StoredWeight::view(Operands operands) const {
  WeightView view = shape;
  view.data = operands[data].data;
  if (shape.scale_bytes() > 0) view.scales = operands[scales].data;
  if (shape.bias_bytes() > 0) view.biases = operands[biases].data;
  return view;
}

CaseBuilder::CaseBuilder(Profile profile, std::string_view op, std::string_view sizes)
    : profile_(profile), random_(hash(sizes, hash(op))) {}

size_t CaseBuilder::add(std::string name, Role role, Tensor initial, const Tolerance& tolerance) {
  case_.tensors.push_back({std::move(name), role, std::move(initial), tolerance});
  return case_.tensors.size() - 1;
}

size_t CaseBuilder::vector(std::string name, const Shape& shape, double low, double high) {
  Tensor tensor = Tensor::uninitialized(DType::f32, shape);
  for (float& value : tensor.as<float>()) value = static_cast<float>(random_.uniform(low, high));
  return input(std::move(name), std::move(tensor));
}

size_t CaseBuilder::activation(std::string name, const Shape& shape, double range) {
  const size_t index = vector(std::move(name), shape, -range, range);
  for (float& value : initial(index).as<float>()) value = round_if(profile_ == Profile::bf16, value);
  return index;
}

size_t CaseBuilder::ids(std::string name, const Shape& shape, const std::function<int32_t(size_t)>& value) {
  Tensor tensor = Tensor::uninitialized(DType::i32, shape);
  for (size_t i = 0; i < tensor.as<int32_t>().size(); ++i) tensor.as<int32_t>()[i] = value(i);
  return input(std::move(name), std::move(tensor));
}

// Magnitudes in [2^-5, 2^-3) with a random sign; MXFP4: E2M1 values times 2^-7 to 2^-4; quantized: see fill_quantized.
StoredWeight CaseBuilder::weight(const std::string& name, const WeightForm& form, int64_t out, int64_t in) {
  static_assert(std::endian::native == std::endian::little);  // as the stored formats are
  StoredWeight weight{form.shape(out, in)};
  const WeightView& shape = weight.shape;
  Tensor data = Tensor::uninitialized(DType::u8, {shape.data_bytes()});
  Tensor scales = Tensor::uninitialized(DType::u8, {shape.scale_bytes()});
  Tensor biases = Tensor::uninitialized(DType::u8, {shape.bias_bytes()});
  switch (form.format) {
    case WeightFormat::f32: fill(random_, data, 0x80ffffff80ffffffULL, 0x3d0000003d000000ULL); break;
    case WeightFormat::bf16: fill(random_, data, 0x80ff80ff80ff80ffULL, 0x3d003d003d003d00ULL); break;
    case WeightFormat::mxfp4:
      fill(random_, data, ~uint64_t{0}, 0);
      fill(random_, scales, 0x0303030303030303ULL, 0x7878787878787878ULL);
      break;
    case WeightFormat::fp8_block:
    case WeightFormat::affine: fill_quantized(random_, shape, data.data(), scales.data(), biases.data()); break;
  }
  weight.data = add(name, Role::weight, std::move(data));
  if (shape.scale_bytes() > 0) weight.scales = add(name + " scales", Role::weight, std::move(scales));
  if (shape.bias_bytes() > 0) weight.biases = add(name + " biases", Role::weight, std::move(biases));
  return weight;
}

size_t CaseBuilder::state(std::string name, const Shape& shape, const Tolerance& tolerance) {
  const size_t index = vector(std::move(name), shape, -1.0, 1.0);
  case_.tensors[index].role = Role::state;
  case_.tensors[index].tolerance = tolerance;
  return index;
}

size_t CaseBuilder::output(std::string name, const Shape& shape, const Tolerance& tolerance, DType dtype) {
  Tensor tensor = Tensor::uninitialized(dtype, shape);
  std::memset(tensor.data(), 0xff, static_cast<size_t>(tensor.bytes()));  // NaN, -1
  return add(std::move(name), Role::output, std::move(tensor), tolerance);
}

Case CaseBuilder::finish(double operations, std::function<void(Context&, Operands)> call, int64_t bytes) {
  if (bytes < 0) {
    bytes = 0;
    for (const CaseTensor& tensor : case_.tensors) bytes += tensor.initial.bytes() * (tensor.role == Role::state ? 2 : 1);
  }
  case_.bytes = bytes;
  case_.operations = operations;
  case_.call = std::move(call);
  return std::move(case_);
}

void SpecList::add(std::string sizes, std::function<Case(CaseBuilder&)> body) {
  auto make = [op = op_, sizes, body = std::move(body)](Profile profile) {
    CaseBuilder builder(profile, op, sizes);
    return body(builder);
  };
  specs_.push_back({op_, std::move(sizes), std::move(make)});
}

}  // namespace weft::ops::suite
