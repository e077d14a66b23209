#include "ops/weight_decode.h"

namespace weft::ops {

void decode_row(const WeightView& weight, int64_t row, float* out) {
  const int64_t in = weight.in;
  switch (weight.format) {
    case WeightFormat::f32: std::memcpy(out, weight.data + row * in * 4, static_cast<size_t>(in * 4)); return;
    case WeightFormat::bf16: {
      const std::byte* data = weight.data + row * in * 2;
      for (int64_t c = 0; c < in; ++c) {
        uint16_t bits = 0;  // mapped files align tensors to bytes only
        std::memcpy(&bits, data + 2 * c, 2);
        out[c] = bf16_to_f32(bits);
      }
      return;
    }
    case WeightFormat::mxfp4: {
      const std::byte* packed = weight.data + row * (in / 2);
      const std::byte* scales = weight.scales + row * (in / kMxGroup);
      for (int64_t group = 0; group < in / kMxGroup; ++group) {
        const float scale = e8m0_to_f32(static_cast<uint8_t>(scales[group]));
        for (int64_t j = 0; j < kMxGroup / 2; ++j) {
          const auto pair = static_cast<uint8_t>(packed[group * (kMxGroup / 2) + j]);
          out[group * kMxGroup + 2 * j] = kE2m1[pair & 15U] * scale;
          out[group * kMxGroup + 2 * j + 1] = kE2m1[pair >> 4U] * scale;
        }
      }
      return;
    }
    case WeightFormat::fp8_block: {
      const std::byte* data = weight.data + row * in;
      const std::byte* scales = weight.row_scales(row);
      for (int64_t c = 0; c < in; ++c) {
        out[c] = e4m3_to_f32(static_cast<uint8_t>(data[c])) * scale_at(weight.scale_type, scales, c / kScaleBlock);
      }
      return;
    }
    case WeightFormat::affine: {
      const std::byte* data = weight.data + row * weight.row_bytes();
      for (int64_t c = 0; c < in; ++c) {
        const int64_t group = c / weight.group;
        const float product =
            static_cast<float>(affine_code(data, c, weight.bits)) * scale_at(weight.scale_type, weight.row_scales(row), group);
        out[c] = product + scale_at(weight.scale_type, weight.row_biases(row), group);
      }
      return;
    }
  }
}

}  // namespace weft::ops
