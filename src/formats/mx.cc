#include "formats/mx.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint32_t kMantissa = 0x007fffffU;

struct ElementTraits {
  int emax;  // exponent of the largest power of two
  int mantissa_bits;
  float reciprocal_max;  // 1 / largest value, rounded to f32
  float max;
  uint8_t top_scale;  // the largest scale byte whose decoded maximum is finite
};

constexpr ElementTraits kTraits[] = {
    {2, 1, 1.0F / 6.0F, 6.0F, 252},
    {8, 3, 1.0F / 448.0F, 448.0F, 246},
    {15, 2, 1.0F / 57344.0F, 57344.0F, 239},
};
static_assert(std::bit_cast<uint32_t>(kTraits[0].reciprocal_max) == 0x3e2aaaabU);
static_assert(std::bit_cast<uint32_t>(kTraits[1].reciprocal_max) == 0x3b124925U);

const ElementTraits& traits(MxElement element) { return kTraits[static_cast<size_t>(element)]; }

// bf16 bits of E2M1 code x 2^(scale - 127) by integers alone.
constexpr uint16_t decode_e2m1_bf16(uint8_t code, uint8_t scale) {
  constexpr int kShift[8] = {0, -1, 0, 0, 1, 1, 2, 2};
  constexpr int kBit[8] = {0, 0, 0, 1, 0, 1, 0, 1};
  if (scale == kE8m0Nan) return 0x7fc0U;
  const int magnitude = code & 7;
  const int sign = (code & 8) << 12;
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const int exponent = scale + kShift[magnitude];
  if (exponent >= 255) return static_cast<uint16_t>(sign | 0x7f80);
  const int bit = kBit[magnitude];
  if (exponent >= 1) return static_cast<uint16_t>(sign | exponent << 7 | bit << 6);
  return static_cast<uint16_t>(sign | ((64 + 32 * bit) >> -exponent));
}

// 2^(127 - scale), scale <= 254.
float reciprocal_of_scale(uint8_t scale) {
  return scale == 254 ? std::bit_cast<float>(0x00400000U) : std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);
}

void check_sizes(std::string_view what, size_t values, size_t data, size_t wanted_data, size_t scales) {
  if (values % kMxBlock != 0 || data != wanted_data || scales != values / kMxBlock) {
    fail(ErrorKind::internal, what,
         "wanted whole blocks of {} values, {} data bytes and {} scales for {} values, found {} and {}", kMxBlock, wanted_data,
         values / kMxBlock, values, data, scales);
  }
}

uint8_t encode(MxElement element, float value) {
  switch (element) {
    case MxElement::e2m1: return f32_to_e2m1(value);
    case MxElement::e4m3: return f32_to_e4m3(value);
    case MxElement::e5m2: return f32_to_e5m2(value);
  }
  fail(ErrorKind::internal, "mx", "unknown element type {}", static_cast<int>(element));
}

// Codes of one block; returns its scale byte.
uint8_t quantize_block(MxElement element, std::span<const float, kMxBlock> values, const MxQuantizer& quantizer,
                       std::span<uint8_t, kMxBlock> codes) {
  uint32_t amax = 0;  // magnitude bits order like magnitudes, with infinity and NaN on top
  for (const float value : values) amax = std::max(amax, std::bit_cast<uint32_t>(value) & kMagnitude);
  const uint8_t scale = mx_scale(std::bit_cast<float>(amax), element, quantizer);
  const float factor = scale == kE8m0Nan ? 0.0F : reciprocal_of_scale(scale);
  for (size_t i = 0; i < kMxBlock; ++i) {
    const float scaled = scale == kE8m0Nan ? std::copysign(0.0F, values[i]) : values[i] * factor;
    codes[i] = encode(element, scaled);
  }
  return scale;
}

template <class Load>
int64_t mxfp4_quantize_rows(size_t count, const MxQuantizer& quantizer, std::span<uint8_t> packed, std::span<uint8_t> scales,
                            const Load& load) {
  check_sizes("mxfp4_quantize", count, packed.size(), count / 2, scales.size());
  int64_t not_finite = 0;
  std::array<float, kMxBlock> values{};
  std::array<uint8_t, kMxBlock> codes{};
  for (size_t block = 0; block < scales.size(); ++block) {
    for (size_t i = 0; i < kMxBlock; ++i) values[i] = load(block * kMxBlock + i);
    scales[block] = quantize_block(MxElement::e2m1, values, quantizer, codes);
    if (scales[block] == kE8m0Nan) ++not_finite;
    std::ranges::copy(mxfp4_pack(codes), packed.begin() + static_cast<ptrdiff_t>(block * kMxfp4BlockBytes));
  }
  return not_finite;
}

void check_mxfp8(MxElement element) {
  if (element == MxElement::e2m1) fail(ErrorKind::internal, "mxfp8", "wanted e4m3 or e5m2 elements, found e2m1");
}

}  // namespace

std::string_view to_string(MxElement element) {
  switch (element) {
    case MxElement::e2m1: return "e2m1";
    case MxElement::e4m3: return "e4m3";
    case MxElement::e5m2: return "e5m2";
  }
  return "?";
}

std::string_view to_string(MxScaleMode mode) {
  switch (mode) {
    case MxScaleMode::floor: return "floor";
    case MxScaleMode::ceil: return "ceil";
    case MxScaleMode::even: return "even";
    case MxScaleMode::rceil: return "rceil";
    case MxScaleMode::nearest: return "nearest";
    case MxScaleMode::compressed_tensors: return "compressed_tensors";
  }
  return "?";
}

float e2m1_to_f32(uint8_t code) { return bf16_to_f32(decode_e2m1_bf16(code, 127)); }

float e4m3_to_f32(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 15 && mantissa == 7) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

float e5m2_to_f32(uint8_t code) {
  const int exponent = code >> 2 & 31;
  const int mantissa = code & 3;
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return std::copysign(mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN(),
                         sign);
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -16);
  return sign * std::ldexp(static_cast<float>(4 + mantissa), exponent - 17);
}

float e8m0_to_f32(uint8_t scale) {
  if (scale == 0) return std::bit_cast<float>(0x00400000U);
  if (scale == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23);
}

uint8_t f32_to_e2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 28 & 8U);
  const float a = std::bit_cast<float>(bits & kMagnitude);
  int code = 7;  // NaN fails every comparison
  if (a <= 0.25F) {
    code = 0;
  } else if (a < 0.75F) {
    code = 1;
  } else if (a <= 1.25F) {
    code = 2;
  } else if (a < 1.75F) {
    code = 3;
  } else if (a <= 2.5F) {
    code = 4;
  } else if (a < 3.5F) {
    code = 5;
  } else if (a <= 5.0F) {
    code = 6;
  }
  return static_cast<uint8_t>(sign | code);
}

uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80U);
  const uint32_t magnitude = bits & kMagnitude;
  uint32_t code = 0;
  if (magnitude >= 0x43e80000U) {  // 464 and above, NaN too: also keeps the sum below from overflowing
    code = 0x7eU;
  } else if (magnitude >= 0x3c800000U) {  // 2^-6
    code = ((magnitude + 0x7ffffU + (magnitude >> 20 & 1U)) >> 20) - (120U << 3);
  } else {  // adding 2^-9 * 2^23 lets the float unit round to multiples of 2^-9
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0F) & 0xffU;
  }
  return static_cast<uint8_t>(sign | code);
}

uint8_t f32_to_e5m2(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80U);
  const uint32_t magnitude = bits & kMagnitude;
  uint32_t code = 0;
  if (magnitude >= 0x47700000U) {  // 61440, the midpoint of 57344 and the unusable 65536
    code = 0x7bU;
  } else if (magnitude >= 0x38800000U) {  // 2^-14
    code = ((magnitude + 0xfffffU + (magnitude >> 21 & 1U)) >> 21) - (112U << 2);
  } else {  // 2^-16 * 2^23
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 128.0F) & 0xffU;
  }
  return static_cast<uint8_t>(sign | code);
}

uint8_t mx_scale(float amax, MxElement element, const MxQuantizer& quantizer) {
  const ElementTraits& t = traits(element);
  const uint32_t bits = std::bit_cast<uint32_t>(amax) & kMagnitude;
  const auto exponent = static_cast<int>(bits >> 23);
  if (exponent == 255) return kE8m0Nan;
  int scale = 0;
  switch (quantizer.mode) {
    case MxScaleMode::floor: scale = exponent - t.emax; break;
    case MxScaleMode::ceil: scale = exponent + ((bits & kMantissa) != 0 ? 1 : 0) - t.emax; break;
    case MxScaleMode::even:
    case MxScaleMode::compressed_tensors: {
      const int mantissa_bits = quantizer.mode == MxScaleMode::even ? t.mantissa_bits : 1;
      const auto rounded = static_cast<int>((bits + (1U << (22 - mantissa_bits))) >> 23);
      if (rounded == 255 && quantizer.compat_ao) return kE8m0Nan;
      scale = rounded - t.emax;
      break;
    }
    case MxScaleMode::rceil: {
      const uint32_t d = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) * t.reciprocal_max);
      const auto d_exponent = static_cast<int>(d >> 23);
      const uint32_t threshold = d_exponent == 0 ? 0x400000U : 0U;  // a subnormal above 2^-127 goes up to 2^-126
      scale = d_exponent + ((d & kMantissa) > threshold ? 1 : 0);
      break;
    }
    case MxScaleMode::nearest:
      if (bits != 0) scale = 127 + static_cast<int>(std::nearbyint(std::log2(std::bit_cast<float>(bits) / t.max)));
      break;
  }
  scale = std::max(scale, 0);
  if (!quantizer.compat_ao) scale = std::min(scale, static_cast<int>(t.top_scale));
  return static_cast<uint8_t>(std::min(scale, 254));
}

void mxfp4_decode_block_bf16(std::span<const uint8_t, kMxfp4BlockBytes> packed, uint8_t scale,
                             std::span<uint16_t, kMxBlock> out) {
  std::array<uint16_t, 16> table{};
  for (uint8_t code = 0; code < 16; ++code) table[code] = decode_e2m1_bf16(code, scale);
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j) {
    out[2 * j] = table[packed[j] & 15U];
    out[2 * j + 1] = table[packed[j] >> 4];
  }
}

void mxfp4_decode_block(std::span<const uint8_t, kMxfp4BlockBytes> packed, uint8_t scale, std::span<float, kMxBlock> out) {
  std::array<float, 16> table{};
  for (uint8_t code = 0; code < 16; ++code) table[code] = bf16_to_f32(decode_e2m1_bf16(code, scale));
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j) {
    out[2 * j] = table[packed[j] & 15U];
    out[2 * j + 1] = table[packed[j] >> 4];
  }
}

void mxfp4_decode(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<float> out) {
  check_sizes("mxfp4_decode", out.size(), packed.size(), out.size() / 2, scales.size());
  for (size_t block = 0; block < scales.size(); ++block) {
    mxfp4_decode_block(packed.subspan(block * kMxfp4BlockBytes).first<kMxfp4BlockBytes>(), scales[block],
                       out.subspan(block * kMxBlock).first<kMxBlock>());
  }
}

void mxfp4_decode_bf16(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<uint16_t> out) {
  check_sizes("mxfp4_decode_bf16", out.size(), packed.size(), out.size() / 2, scales.size());
  for (size_t block = 0; block < scales.size(); ++block) {
    mxfp4_decode_block_bf16(packed.subspan(block * kMxfp4BlockBytes).first<kMxfp4BlockBytes>(), scales[block],
                            out.subspan(block * kMxBlock).first<kMxBlock>());
  }
}

int64_t mxfp4_quantize(std::span<const float> values, const MxQuantizer& quantizer, std::span<uint8_t> packed,
                       std::span<uint8_t> scales) {
  return mxfp4_quantize_rows(values.size(), quantizer, packed, scales, [&](size_t i) { return values[i]; });
}

int64_t mxfp4_quantize_bf16(std::span<const uint16_t> values, const MxQuantizer& quantizer, std::span<uint8_t> packed,
                            std::span<uint8_t> scales) {
  return mxfp4_quantize_rows(values.size(), quantizer, packed, scales, [&](size_t i) { return bf16_to_f32(values[i]); });
}

void mxfp8_decode(MxElement element, std::span<const uint8_t> codes, std::span<const uint8_t> scales, std::span<float> out) {
  check_mxfp8(element);
  check_sizes("mxfp8_decode", out.size(), codes.size(), out.size(), scales.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const float value = element == MxElement::e4m3 ? e4m3_to_f32(codes[i]) : e5m2_to_f32(codes[i]);
    out[i] = value * e8m0_to_f32(scales[i / kMxBlock]);
  }
}

void mxfp8_decode_bf16(MxElement element, std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<uint16_t> out) {
  check_mxfp8(element);
  check_sizes("mxfp8_decode_bf16", out.size(), codes.size(), out.size(), scales.size());
  std::array<float, kMxBlock> values{};
  for (size_t block = 0; block < scales.size(); ++block) {
    mxfp8_decode(element, codes.subspan(block * kMxBlock, kMxBlock), scales.subspan(block, 1), values);
    for (size_t i = 0; i < kMxBlock; ++i) out[block * kMxBlock + i] = f32_to_bf16(values[i]);
  }
}

int64_t mxfp8_quantize(MxElement element, std::span<const float> values, const MxQuantizer& quantizer, std::span<uint8_t> codes,
                       std::span<uint8_t> scales) {
  check_mxfp8(element);
  check_sizes("mxfp8_quantize", values.size(), codes.size(), values.size(), scales.size());
  int64_t not_finite = 0;
  for (size_t block = 0; block < scales.size(); ++block) {
    scales[block] = quantize_block(element, values.subspan(block * kMxBlock).first<kMxBlock>(), quantizer,
                                   codes.subspan(block * kMxBlock).first<kMxBlock>());
    if (scales[block] == kE8m0Nan) ++not_finite;
  }
  return not_finite;
}

std::array<uint8_t, kMxfp4BlockBytes> mxfp4_pack(std::span<const uint8_t, kMxBlock> codes) {
  std::array<uint8_t, kMxfp4BlockBytes> packed{};
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j)
    packed[j] = static_cast<uint8_t>((codes[2 * j] & 15U) | (codes[2 * j + 1] & 15U) << 4);
  return packed;
}

std::array<uint8_t, kMxBlock> mxfp4_unpack(std::span<const uint8_t, kMxfp4BlockBytes> packed) {
  std::array<uint8_t, kMxBlock> codes{};
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j) {
    codes[2 * j] = packed[j] & 15U;
    codes[2 * j + 1] = static_cast<uint8_t>(packed[j] >> 4);
  }
  return codes;
}

std::array<uint32_t, 4> mxfp4_to_mlx(std::span<const uint8_t, kMxfp4BlockBytes> packed) {
  std::array<uint32_t, 4> words{};
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j) words[j / 4] |= static_cast<uint32_t>(packed[j]) << (8 * (j % 4));
  return words;
}

std::array<uint8_t, kMxfp4BlockBytes> mxfp4_from_mlx(std::span<const uint32_t, 4> words) {
  std::array<uint8_t, kMxfp4BlockBytes> packed{};
  for (size_t j = 0; j < kMxfp4BlockBytes; ++j) packed[j] = static_cast<uint8_t>(words[j / 4] >> (8 * (j % 4)));
  return packed;
}

std::array<uint8_t, kGgufMxfp4BlockBytes> mxfp4_to_gguf(std::span<const uint8_t, kMxfp4BlockBytes> packed, uint8_t scale) {
  const std::array<uint8_t, kMxBlock> codes = mxfp4_unpack(packed);
  std::array<uint8_t, kGgufMxfp4BlockBytes> block{scale};
  for (size_t j = 0; j < 16; ++j) block[1 + j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
  return block;
}

Mxfp4Block mxfp4_from_gguf(std::span<const uint8_t, kGgufMxfp4BlockBytes> block) {
  std::array<uint8_t, kMxBlock> codes{};
  for (size_t j = 0; j < 16; ++j) {
    codes[j] = block[1 + j] & 15U;
    codes[j + 16] = static_cast<uint8_t>(block[1 + j] >> 4);
  }
  return {mxfp4_pack(codes), block[0]};
}

}  // namespace weft
