#include "formats/logical_prefix.h"

#include <cstring>

#include "base/error.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "checkpoint";

double value_at(const TensorView& tensor, int64_t i) {
  const std::byte* at = tensor.data + i * size_of(tensor.dtype);
  if (tensor.dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bf16_to_f32(bits);
}

}  // namespace

std::vector<float> logical_prefix(const TensorView& stored, int64_t heads, std::string_view name) {
  if (stored.dtype != DType::f32 && stored.dtype != DType::bf16)
    fail(ErrorKind::bad_checkpoint, kPlace, "{}: wanted F32 or BF16 per-head values, found {}", name, stored.dtype);
  const int64_t length = stored.elements();
  if (length < heads)
    fail(ErrorKind::bad_checkpoint, kPlace, "{}: length {}, expected at least {} per-head values", name, length, heads);
  if (stored.shape.rank() != 1 && stored.shape != Shape{1, 1, heads, 1}) {
    fail(ErrorKind::bad_checkpoint, kPlace,
         "{}: length {}, expected shape [Hk], [n] with n > Hk or [1, 1, Hk, 1] with Hk={}, found {}", name, length, heads,
         stored.shape);
  }
  for (int64_t i = heads; i < length; ++i) {
    const double value = value_at(stored, i);
    if (value == 0.0) continue;
    fail(ErrorKind::bad_checkpoint, kPlace,
         "{}: length {}, expected Hk={} per-head values followed by zeros, found {} at index {}", name, length, heads, value,
         i);
  }
  std::vector<float> values;
  values.reserve(static_cast<size_t>(heads));
  for (int64_t i = 0; i < heads; ++i) values.push_back(static_cast<float>(value_at(stored, i)));
  return values;
}

}  // namespace weft
