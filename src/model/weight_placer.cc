#include "model/weight_placer.h"

#include "base/error.h"

namespace weft {
namespace {

// Bits of stand-ins: those that vary, and those that are set. Magnitudes in [2^-5, 2^-3) with a random sign; E2M1 codes of any
// value times 2^-7 to 2^-4.
struct Bits {
  uint32_t keep = 0;
  uint32_t set = 0;
};
constexpr Bits kF32{0x80ffffffU, 0x3d000000U};
constexpr Bits kBf16{0x80ff80ffU, 0x3d003d00U};
constexpr Bits kE2m1{0xffffffffU, 0};
constexpr Bits kE8m0{0x03030303U, 0x78787878U};
constexpr Bits kE4m3{0xbfbfbfbfU, 0};  // below 2, so no NaN
constexpr Bits kCodes{0xffffffffU, 0};

Bits bits_of(ops::WeightFormat format) {
  switch (format) {
    case ops::WeightFormat::f32: return kF32;
    case ops::WeightFormat::bf16: return kBf16;
    case ops::WeightFormat::mxfp4: return kE2m1;
    case ops::WeightFormat::fp8_block: return kE4m3;
    case ops::WeightFormat::affine: return kCodes;
  }
  return {};
}

// Scales in [2^-11, 2^-10); biases of the size of weights.
Bits scale_bits_of(const ops::WeightView& weight) {
  if (weight.format == ops::WeightFormat::mxfp4) return kE8m0;
  switch (weight.scale_type) {
    case ops::ScaleType::bf16: return {0x007f007fU, 0x3a003a00U};
    case ops::ScaleType::f16: return {0x03ff03ffU, 0x10001000U};
    case ops::ScaleType::f32: return {0x007fffffU, 0x3a000000U};
  }
  return {};
}
Bits bias_bits_of(const ops::WeightView& weight) {
  switch (weight.scale_type) {
    case ops::ScaleType::bf16: return kBf16;
    case ops::ScaleType::f16: return {0x87ff87ffU, 0x28002800U};
    case ops::ScaleType::f32: return kF32;
  }
  return {};
}

}  // namespace

WeightPlacer::WeightPlacer(std::shared_ptr<Device> device, bool dummy) : device_(std::move(device)), dummy_(dummy) {
  if (dummy_ && device_->is_host()) fail(ErrorKind::internal, "weights", "wanted a GPU to make them on, found the host");
}

std::byte* WeightPlacer::copy(const std::byte* data, int64_t bytes) const {
  std::byte* const there = device_->take(ByteCount(bytes));
  device_->upload(there, data, bytes);
  return there;
}

std::byte* WeightPlacer::make(int64_t bytes, uint32_t keep, uint32_t set) const {
  std::byte* const there = device_->take(ByteCount(bytes));
  device_->fill_random(there, bytes, keep, set);
  return there;
}

ops::WeightView WeightPlacer::place(const ops::WeightView& weight) const {
  if (device_->is_host()) return weight;
  ops::WeightView there = weight;
  const auto part = [&](const std::byte* data, int64_t bytes, Bits bits) -> const std::byte* {
    if (bytes == 0) return nullptr;
    return dummy_ ? make(bytes, bits.keep, bits.set) : copy(data, bytes);
  };
  there.data = part(weight.data, weight.data_bytes(), bits_of(weight.format));
  there.scales = part(weight.scales, weight.scale_bytes(), scale_bits_of(weight));
  there.biases = part(weight.biases, weight.bias_bytes(), bias_bits_of(weight));
  return there;
}

Tensor WeightPlacer::place(Tensor tensor) const {
  if (device_->is_host()) return tensor;
  std::byte* const there = dummy_ ? make(tensor.bytes(), kF32.keep, kF32.set) : copy(tensor.data(), tensor.bytes());
  return Tensor::borrowed({tensor.dtype(), tensor.shape(), there});
}

const ops::ExpertView* WeightPlacer::place(std::span<const ops::ExpertView> experts) const {
  const auto* bytes = reinterpret_cast<const std::byte*>(experts.data());
  return reinterpret_cast<const ops::ExpertView*>(copy(bytes, static_cast<int64_t>(experts.size_bytes())));
}

}  // namespace weft
