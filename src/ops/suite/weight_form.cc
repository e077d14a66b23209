#include "ops/suite/weight_form.h"

#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "ops/weight_decode.h"

namespace weft::ops::suite {
namespace {

// Finite values of ordinary size: exact conversions are not the point here.
uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits >> 16U & 0x8000U) | ((bits & 0x7FFFFFFFU) - (112U << 23U)) >> 13U);
}

void store_scale(ScaleType type, float value, std::byte* to) {
  if (type == ScaleType::f32) {
    std::memcpy(to, &value, 4);
    return;
  }
  const uint16_t bits = type == ScaleType::bf16 ? f32_to_bf16(value) : to_f16(value);
  std::memcpy(to, &bits, 2);
}

std::string_view name_of(ScaleType type) {
  switch (type) {
    case ScaleType::bf16: return "bf16";
    case ScaleType::f16: return "f16";
    case ScaleType::f32: return "f32";
  }
  return "";
}

}  // namespace

WeightForm WeightForm::fp8(ScaleType scale_type, uint8_t block_row) {
  WeightForm form(WeightFormat::fp8_block);
  form.scale_type = scale_type;
  form.block_row = block_row;
  return form;
}

WeightForm WeightForm::affine(uint8_t bits, uint8_t group, ScaleType scale_type) {
  WeightForm form(WeightFormat::affine);
  form.bits = bits;
  form.group = group;
  form.scale_type = scale_type;
  return form;
}

WeightView WeightForm::shape(int64_t out, int64_t in) const {
  WeightView view;
  view.format = format;
  view.out = out;
  view.in = in;
  view.scale_type = scale_type;
  view.bits = bits;
  view.group = group;
  view.block_row = block_row;
  return view;
}

bool WeightForm::holds(int64_t in) const {
  return in % (format == WeightFormat::mxfp4 ? kMxGroup : format == WeightFormat::affine ? group : 1) == 0;
}

std::string to_string(const WeightForm& form) {
  switch (form.format) {
    case WeightFormat::f32: return "f32";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::mxfp4: return "mxfp4";
    case WeightFormat::fp8_block:
      return fmt::format("fp8 scales {}{}", name_of(form.scale_type),
                         form.block_row == 0 ? "" : fmt::format(" from row {}", form.block_row));
    case WeightFormat::affine: return fmt::format("affine{} g{} scales {}", form.bits, form.group, name_of(form.scale_type));
  }
  return "";
}

std::span<const WeightForm> all_forms() {
  static const std::array<WeightForm, 14> kForms = {
      WeightFormat::f32,
      WeightFormat::bf16,
      WeightFormat::mxfp4,
      WeightForm::fp8(ScaleType::bf16),
      WeightForm::fp8(ScaleType::f32, 100),
      WeightForm::affine(2, 32),
      WeightForm::affine(3, 32),
      WeightForm::affine(4, 32),
      WeightForm::affine(5, 32),
      WeightForm::affine(6, 32),
      WeightForm::affine(8, 32),
      WeightForm::affine(3, 64, ScaleType::f32),
      WeightForm::affine(4, 64, ScaleType::f16),
      WeightForm::affine(8, 128),
  };
  return kForms;
}

void fill_quantized(Random& random, const WeightView& shape, std::byte* data, std::byte* scales, std::byte* biases) {
  for (int64_t i = 0; i < shape.data_bytes(); ++i) {
    auto code = static_cast<uint8_t>(random.bits() >> 56U);
    if (shape.format == WeightFormat::fp8_block && (code & 0x7FU) == 0x7FU) code ^= 1U;  // no NaN
    data[i] = static_cast<std::byte>(code);
  }
  const double highest = std::ldexp(1.0, shape.bits) - 1.0;
  for (int64_t i = 0; i < shape.scale_bytes() / shape.scale_size(); ++i) {
    std::byte* to = scales + i * shape.scale_size();
    if (shape.format == WeightFormat::fp8_block) {
      store_scale(shape.scale_type, static_cast<float>(random.uniform(0x1p-11, 0x1p-10)), to);
    } else {
      const double scale = random.uniform(0.2, 0.36) / highest;
      store_scale(shape.scale_type, static_cast<float>(scale), to);
      store_scale(shape.scale_type, static_cast<float>(-scale * highest * random.uniform(0.4, 0.6)),
                  biases + i * shape.scale_size());
    }
  }
}

}  // namespace weft::ops::suite
