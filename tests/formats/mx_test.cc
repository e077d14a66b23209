#include "formats/mx.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tensor/bf16.h"

namespace weft {
namespace {

using enum MxScaleMode;
using testing::ElementsAreArray;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  std::string digits;
  for (const char c : text) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() == 2) {
      bytes.push_back(static_cast<uint8_t>(std::stoul(digits, nullptr, 16)));
      digits.clear();
    }
  }
  return bytes;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x} ", byte);
  return text;
}

std::vector<uint32_t> bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<float> padded(std::vector<float> values, size_t size = kMxBlock) {
  values.resize(size, 0.0F);
  return values;
}

// ---- Elements -------------------------------------------------------------------------------------------------------------

TEST(MxElements, E2m1HasItsSixteenValues) {
  const float magnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (uint8_t code = 0; code < 16; ++code) {
    const float wanted = code < 8 ? magnitudes[code] : -magnitudes[code - 8];
    EXPECT_EQ(std::bit_cast<uint32_t>(e2m1_to_f32(code)), std::bit_cast<uint32_t>(wanted)) << int{code};
    EXPECT_EQ(f32_to_e2m1(wanted), code);
  }
}

TEST(MxElements, E4m3TableAndRoundTrip) {
  const std::pair<int, float> table[] = {{0x00, 0.0F},   {0x01, 0x1p-9F}, {0x07, 7 * 0x1p-9F}, {0x08, 0x1p-6F}, {0x38, 1.0F},
                                         {0x77, 240.0F}, {0x78, 256.0F},  {0x7e, 448.0F},      {0xfe, -448.0F}};
  for (const auto& [code, value] : table) EXPECT_EQ(e4m3_to_f32(static_cast<uint8_t>(code)), value) << code;
  EXPECT_TRUE(std::signbit(e4m3_to_f32(0x80)));
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(f32_to_e4m3(value), code);
    }
  }
}

TEST(MxElements, E5m2TableAndRoundTrip) {
  EXPECT_EQ(e5m2_to_f32(0x01), 0x1p-16F);
  EXPECT_EQ(e5m2_to_f32(0x04), 0x1p-14F);
  EXPECT_EQ(e5m2_to_f32(0x7b), 57344.0F);
  EXPECT_EQ(e5m2_to_f32(0x7c), kInf);
  EXPECT_EQ(e5m2_to_f32(0xfc), -kInf);
  for (const int code : {0x7d, 0x7e, 0x7f, 0xff}) EXPECT_TRUE(std::isnan(e5m2_to_f32(static_cast<uint8_t>(code))));
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) >= 0x7c) continue;
    EXPECT_EQ(f32_to_e5m2(e5m2_to_f32(static_cast<uint8_t>(code))), code);
  }
  EXPECT_EQ(f32_to_e5m2(1e30F), 0x7b);
  EXPECT_EQ(f32_to_e5m2(-kInf), 0xfb);
}

TEST(MxElements, E8m0AllCodes) {
  EXPECT_EQ(std::bit_cast<uint32_t>(e8m0_to_f32(0)), 0x00400000U);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
  for (int s = 0; s < 255; ++s) EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(s)), std::ldexp(1.0F, s - 127)) << s;
}

// Nearest representable value by exhaustive search in double, ties to the even code.
template <class Decode>
uint8_t nearest_code(double magnitude, int codes, const Decode& decode) {
  int best = 0;
  for (int code = 1; code < codes; ++code) {
    const double now = std::abs(double{decode(static_cast<uint8_t>(code))} - magnitude);
    const double before = std::abs(double{decode(static_cast<uint8_t>(best))} - magnitude);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best);
}

TEST(MxElements, RoundingMatchesSearchForEveryBf16) {
  for (uint32_t bits = 0; bits < 0x7f80U; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    if (value > 1e6F) break;  // far in saturation
    ASSERT_EQ(f32_to_e2m1(value), nearest_code(value, 8, e2m1_to_f32)) << value;
    ASSERT_EQ(f32_to_e4m3(value), nearest_code(value, 0x7f, e4m3_to_f32)) << value;
    ASSERT_EQ(f32_to_e5m2(value), nearest_code(value, 0x7c, e5m2_to_f32)) << value;
    ASSERT_EQ(f32_to_e2m1(-value), f32_to_e2m1(value) | 8);
    ASSERT_EQ(f32_to_e4m3(-value), f32_to_e4m3(value) | 0x80);
    ASSERT_EQ(f32_to_e5m2(-value), f32_to_e5m2(value) | 0x80);
  }
}

TEST(MxElements, RoundingAtEveryMidpointAndOneUlpBesideIt) {
  const auto check = [](int codes, auto decode, auto encode) {
    for (int code = 0; code + 1 < codes; ++code) {
      const float middle = (decode(static_cast<uint8_t>(code)) + decode(static_cast<uint8_t>(code + 1))) / 2;
      EXPECT_EQ(encode(middle), code % 2 == 0 ? code : code + 1);
      EXPECT_EQ(encode(std::nextafter(middle, 0.0F)), code);
      EXPECT_EQ(encode(std::nextafter(middle, kInf)), code + 1);
    }
  };
  check(8, e2m1_to_f32, f32_to_e2m1);
  check(0x7f, e4m3_to_f32, f32_to_e4m3);
  check(0x7c, e5m2_to_f32, f32_to_e5m2);
}

// ---- Vectors of mx_formats 1.8 and the K3 model's examples
// -------------------------------------------------------------------

struct Vector {
  std::string id;
  std::vector<MxScaleMode> modes;
  std::vector<float> inputs;
  int scale;
  std::string packed;  // the rest is zero
  std::vector<float> decoded;
  bool compat_ao = false;
};

const float kBf16Max = bf16_to_f32(0x7f7f);
const std::vector<float> kRamp = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6,
                                  0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
const std::vector<float> kL = {.01232910F, -.03100586F, .04565430F, -.000900269F, .02001953F, -.06054688F, .003097534F, 0};

std::vector<float> four_times(std::vector<float> values) {
  std::vector<float> result;
  for (int i = 0; i < 4; ++i) result.insert(result.end(), values.begin(), values.end());
  return result;
}

std::vector<float> alternating_zeros() {
  std::vector<float> values;
  for (int i = 0; i < kMxBlock; ++i) values.push_back(i % 2 == 0 ? -0.0F : 0.0F);
  return values;
}

std::vector<float> tenths() {  // K3 spec 9
  std::vector<float> values;
  for (int i = 0; i < kMxBlock; ++i) values.push_back(static_cast<float>(i - 16) / 10.0F);
  return values;
}

const std::vector<Vector>& vectors() {
  static const std::vector<MxScaleMode> all = {floor, ceil, even, rceil, nearest, compressed_tensors};
  static const std::vector<Vector> list = {
      {"A", {floor, rceil, even, compressed_tensors}, kRamp, 0x7f, "10 32 54 76 98 ba dc fe 10 32 54 76 98 ba dc fe", kRamp},
      {"A'", {ceil}, kRamp, 0x80, "00 21 32 54 88 a9 ba dc 00 21 32 54 88 a9 ba dc", {}},
      {"B",
       {floor, rceil, even, compressed_tensors},
       {6, .25, .75, 1.25, 1.75, 2.5, 3.5, 5, -.25, -.75, -1.25, -1.75, -2.5, -3.5, -5, -6},
       0x7f,
       "07 22 44 66 a8 ca ec fe",
       {6, 0, 1, 1, 2, 2, 4, 4, -0.0, -1, -1, -2, -2, -4, -4, -6}},
      {"C",
       {floor, rceil, even, compressed_tensors},
       {6, .251953125, .75390625, 1.2578125, 1.7578125, 2.515625, 3.515625, 5.03125},
       0x7f,
       "17 32 54 76",
       {6, .5, 1, 1.5, 2, 3, 4, 6}},
      {"D", {floor, even, compressed_tensors}, {6.5, -6.5, 5, 4, 3, 1}, 0x7f, "f7 66 25", {6, -6, 4, 4, 3, 1}},
      {"D'", {rceil, ceil}, {6.5, -6.5, 5, 4, 3, 1}, 0x80, "d5 44 13", {6, -6, 4, 4, 3, 1}},
      {"E", {floor}, {7, -7, 6, 5, 3, .5}, 0x7f, "f7 67 15", {6, -6, 6, 4, 3, .5}},
      {"E'", {rceil, even, ceil, compressed_tensors}, {7, -7, 6, 5, 3, .5}, 0x80, "e6 45 03", {8, -8, 6, 4, 3, 0}},
      {"F", {floor, even, compressed_tensors}, {3.25, -3.25, 3, 2, 1, .5}, 0x7e, "f7 67 24", {3, -3, 3, 2, 1, .5}},
      {"F'", {rceil, ceil}, {3.25, -3.25, 3, 2, 1, .5}, 0x7f, "d5 45 12", {3, -3, 3, 2, 1, .5}},
      {"G", all, {0}, 0x00, "", {0}},
      {"H", all, alternating_zeros(), 0x00, "08 08 08 08 08 08 08 08 08 08 08 08 08 08 08 08", alternating_zeros()},
      {"I", all, {0x1p-133F, -0x1p-133F}, 0x00, "80", {0, -0.0}},
      {"J",
       all,
       {0x1p-126F, 0x1p-127F, 0x1p-128F, 0x1p-129F, -0x1p-130F},
       0x00,
       "24 01 08",
       {0x1p-126F, 0x1p-127F, 0x1p-128F, 0, -0.0}},
      {"K",
       {floor, rceil, even, compressed_tensors},
       {kBf16Max, -kBf16Max, 0x1p127F, 0x1p126F},
       0xfc,
       "f7 46",
       {1.5F * 0x1p127F, -1.5F * 0x1p127F, 0x1p127F, 0x1p126F}},
      {"K'", {rceil}, {kBf16Max, -kBf16Max, 0x1p127F, 0x1p126F}, 0xfd, "e6 24", {kInf, -kInf, 0x1p127F, 0x1p126F}, true},
      {"L",
       {floor},
       four_times(kL),
       0x78,
       "e3 87 f5 01 e3 87 f5 01 e3 87 f5 01 e3 87 f5 01",
       four_times({.01171875, -.03125, .046875, -0.0, .0234375, -.046875, .00390625, 0})},
      {"L'",
       {rceil, even, ceil, compressed_tensors},
       four_times(kL),
       0x79,
       "c2 85 e3 00 c2 85 e3 00 c2 85 e3 00 c2 85 e3 00",
       four_times({.015625, -.03125, .046875, -0.0, .0234375, -.0625, 0, 0})},
      {"K3 floor", {floor}, tenths(), 125, "ff ff ee ee dd cc ab 9a 10 22 43 54 65 66 76 77", {}},
      // The K3 document prints byte 7 as 09: its -0.1 becomes +0. The MX rules, which decide, keep the sign of a zero.
      {"K3 ceiling", {rceil}, tenths(), 126, "dd dd cc cc bb aa 9a 89 00 11 22 32 43 44 54 55", {}},
  };
  return list;
}

TEST(Mxfp4Vectors, QuantiseAndDecode) {
  for (const Vector& vector : vectors()) {
    for (const MxScaleMode mode : vector.modes) {
      SCOPED_TRACE(fmt::format("{} {}", vector.id, to_string(mode)));
      const std::vector<float> inputs = padded(vector.inputs);
      std::array<uint8_t, kMxfp4BlockBytes> packed{};
      std::array<uint8_t, 1> scale{};
      EXPECT_EQ(mxfp4_quantize(inputs, {mode, vector.compat_ao}, packed, scale), 0);
      std::vector<uint8_t> wanted = from_hex(vector.packed);
      wanted.resize(kMxfp4BlockBytes, 0);
      EXPECT_EQ(hex(packed), hex(wanted));
      EXPECT_EQ(scale[0], vector.scale);
      if (vector.decoded.empty()) continue;
      std::array<float, kMxBlock> decoded{};
      mxfp4_decode(packed, scale, decoded);
      EXPECT_EQ(bits_of(decoded), bits_of(padded(vector.decoded)));
    }
  }
}

TEST(Mxfp4Vectors, LossyCeilOfTheRamp) {
  std::array<uint8_t, kMxfp4BlockBytes> packed{};
  std::array<uint8_t, 1> scale{};
  (void)mxfp4_quantize(kRamp, {ceil}, packed, scale);
  std::array<float, kMxBlock> decoded{};
  mxfp4_decode(packed, scale, decoded);
  EXPECT_THAT(std::vector<float>(decoded.begin(), decoded.begin() + 8), ElementsAreArray({0, 0, 1, 2, 2, 3, 4, 6}));
}

TEST(Mxfp4Vectors, NonFiniteBlocksAreNanInEveryModeAndCounted) {
  for (const MxScaleMode mode : {floor, ceil, even, rceil, nearest, compressed_tensors}) {
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> inputs(2 * kMxBlock, 1.0F);
      inputs[0] = bad;
      inputs[1] = -1.0F;
      std::array<uint8_t, 2 * kMxfp4BlockBytes> packed{};
      std::array<uint8_t, 2> scales{};
      EXPECT_EQ(mxfp4_quantize(inputs, {mode}, packed, scales), 1);
      EXPECT_EQ(scales[0], 0xff);
      EXPECT_NE(scales[1], 0xff);
      EXPECT_EQ(packed[0] >> 4, 8);  // the element's sign is kept
      EXPECT_EQ(packed[1], 0);
      std::array<float, 2 * kMxBlock> decoded{};
      mxfp4_decode(packed, scales, decoded);
      for (int i = 0; i < kMxBlock; ++i) EXPECT_TRUE(std::isnan(decoded[static_cast<size_t>(i)]));
      EXPECT_FALSE(std::isnan(decoded[kMxBlock]));
    }
  }
}

TEST(Mxfp4Vectors, DecodeOfTheK3Example) {
  const std::vector<uint8_t> packed = from_hex("10 32 54 76 98 ba dc fe 0f 1e 2d 3c 4b 5a 69 78");
  const std::array<uint8_t, 1> scale = {125};
  const std::vector<float> wanted = {0,      0.125, 0.25,   0.375, 0.5,   0.75, 1,      1.5, -0.0,  -0.125, -0.25,
                                     -0.375, -0.5,  -0.75,  -1,    -1.5,  -1.5, 0,      -1,  0.125, -0.75,  0.25,
                                     -0.5,   0.375, -0.375, 0.5,   -0.25, 0.75, -0.125, 1,   -0.0,  1.5};
  std::array<float, kMxBlock> decoded{};
  mxfp4_decode(packed, scale, decoded);
  EXPECT_EQ(bits_of(decoded), bits_of(wanted));
  EXPECT_EQ(e8m0_to_f32(118), 0.001953125F);
  EXPECT_EQ(e8m0_to_f32(127), 1.0F);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127F);
}

TEST(Mxfp4Vectors, DecodeToBf16AtTheExtremes) {
  const std::array<uint8_t, kMxfp4BlockBytes> packed = {0x21, 0x74};
  const std::pair<int, std::array<uint16_t, 4>> table[] = {{0, {0x0020, 0x0040, 0x0080, 0x0140}},
                                                           {1, {0x0040, 0x0080, 0x0100, 0x01c0}},
                                                           {127, {0x3f00, 0x3f80, 0x4000, 0x40c0}},
                                                           {254, {0x7e80, 0x7f00, 0x7f80, 0x7f80}},
                                                           {255, {0x7fc0, 0x7fc0, 0x7fc0, 0x7fc0}}};
  for (const auto& [scale, wanted] : table) {
    std::array<uint16_t, kMxBlock> decoded{};
    mxfp4_decode_block_bf16(packed, static_cast<uint8_t>(scale), decoded);
    EXPECT_THAT(std::vector<uint16_t>(decoded.begin(), decoded.begin() + 4), ElementsAreArray(wanted)) << scale;
  }
  std::array<uint16_t, kMxBlock> decoded{};  // code 3 of scale 0 is the only other subnormal
  mxfp4_decode_block_bf16(std::array<uint8_t, kMxfp4BlockBytes>{0xb3}, 0, decoded);
  EXPECT_EQ(decoded[0], 0x0060);
  EXPECT_EQ(decoded[1], 0x8060);
}

TEST(Mxfp4Decode, EveryPairMatchesTheProductInDouble) {
  for (int s = 0; s < 255; ++s) {
    for (int code = 0; code < 16; ++code) {
      const auto byte = static_cast<uint8_t>(code | (15 - code) << 4);
      std::array<uint8_t, kMxfp4BlockBytes> packed{};
      packed.fill(byte);
      std::array<float, kMxBlock> f32{};
      std::array<uint16_t, kMxBlock> bf16{};
      mxfp4_decode_block(packed, static_cast<uint8_t>(s), f32);
      mxfp4_decode_block_bf16(packed, static_cast<uint8_t>(s), bf16);
      const double wanted = std::ldexp(double{e2m1_to_f32(static_cast<uint8_t>(code))}, s - 127);
      ASSERT_EQ(std::bit_cast<uint32_t>(f32[0]), std::bit_cast<uint32_t>(static_cast<float>(wanted))) << s << " " << code;
      ASSERT_EQ(bf16_to_f32(bf16[30]), f32[30]) << s << " " << code;
      ASSERT_EQ(bf16_to_f32(bf16[31]), f32[31]) << s << " " << code;
    }
  }
}

struct Fp8Vector {
  std::string id;
  std::vector<MxScaleMode> modes;
  std::vector<float> inputs;
  int scale;
  std::string codes;
  std::vector<float> decoded;
};

TEST(Mxfp8Vectors, QuantiseAndDecode) {
  const std::vector<float> q = {448, -460, 300, 17, 18, 19, .010009766F, .00099945068F};
  const std::vector<Fp8Vector> list = {
      {"P",
       {floor, rceil},
       {448, -448, 440, 300, 1, .0017013550F, .00090026855F, -0.0F},
       0x7f,
       "7e fe 7e 79 38 01 00 80",
       {448, -448, 448, 288, 1, 0x1p-9F, 0, -0.0F}},
      {"Q", {floor}, q, 0x7f, "7e fe 79 58 59 5a 05 01", {448, -448, 288, 16, 18, 20, .009765625, 0x1p-9F}},
      {"Q'", {rceil}, q, 0x80, "76 f6 71 50 51 52 03 00", {448, -448, 288, 16, 18, 20, .01171875, 0}},
      {"R",
       {floor, rceil},
       {1, -.5, .30078125F, .10009766F, .010009766F, .00099945068F, .00010013580F, -.000010013580F},
       0x77,
       "78 f0 6a 5d 42 28 0d 81",
       {1, -.5, .3125, .1015625, .009765625, .0009765625, 9.91821289e-05F, -7.62939453e-06F}},
      {"S",
       {floor, rceil},
       {3, 2.90625, 1.703125, -.33007812F, .06982422F, 0, -0.0F, 1},
       0x78,
       "7c 7c 76 e3 51 00 80 70",
       {3, 3, 1.75, -.34375, .0703125, 0, -0.0F, 1}},
  };
  for (const Fp8Vector& vector : list) {
    for (const MxScaleMode mode : vector.modes) {
      SCOPED_TRACE(fmt::format("{} {}", vector.id, to_string(mode)));
      std::vector<float> inputs = padded(vector.inputs);
      for (float& value : inputs) value = bf16_to_f32(f32_to_bf16(value));  // the listed decimals stand for bf16 values
      std::array<uint8_t, kMxBlock> codes{};
      std::array<uint8_t, 1> scale{};
      EXPECT_EQ(mxfp8_quantize(MxElement::e4m3, inputs, {mode}, codes, scale), 0);
      std::vector<uint8_t> wanted = from_hex(vector.codes);
      wanted.resize(kMxBlock, 0);
      EXPECT_EQ(hex(codes), hex(wanted));
      EXPECT_EQ(scale[0], vector.scale);
      std::array<float, kMxBlock> decoded{};
      mxfp8_decode(MxElement::e4m3, codes, scale, decoded);
      EXPECT_EQ(bits_of(decoded), bits_of(padded(vector.decoded)));
      std::array<uint16_t, kMxBlock> bf16{};
      mxfp8_decode_bf16(MxElement::e4m3, codes, scale, bf16);
      for (size_t i = 0; i < kMxBlock; ++i) EXPECT_EQ(bf16_to_f32(bf16[i]), decoded[i]);
    }
  }
}

TEST(Mxfp8Decode, EveryPairMatchesTheProductInDouble) {
  for (const MxElement element : {MxElement::e4m3, MxElement::e5m2}) {
    std::array<uint8_t, 256> codes{};
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
    for (int s = 0; s < 256; ++s) {
      std::array<uint8_t, 8> scales{};
      scales.fill(static_cast<uint8_t>(s));
      std::array<float, 256> decoded{};
      mxfp8_decode(element, codes, scales, decoded);
      for (size_t i = 0; i < codes.size(); ++i) {
        const float value = element == MxElement::e4m3 ? e4m3_to_f32(codes[i]) : e5m2_to_f32(codes[i]);
        if (s == 255 || std::isnan(value)) {
          ASSERT_TRUE(std::isnan(decoded[i]));
        } else {
          ASSERT_EQ(decoded[i], static_cast<float>(std::ldexp(double{value}, s - 127))) << s << " " << i;
        }
      }
    }
  }
}

// ---- Scales
// ------------------------------------------------------------------------------------------------------------------

TEST(MxScale, EvenStepsUpAtItsThreshold) {
  // E2M1 at 1.75 x 2^k, E4M3 at 1.9375 x 2^k, compressed-tensors at 1.75 for both.
  const auto scale = [](float amax, MxElement element, MxScaleMode mode) { return int{mx_scale(amax, element, {mode})}; };
  EXPECT_EQ(scale(1.75F, MxElement::e2m1, even), 126);
  EXPECT_EQ(scale(std::nextafter(1.75F, 0.0F), MxElement::e2m1, even), 125);
  EXPECT_EQ(scale(1.9375F, MxElement::e4m3, even), 120);
  EXPECT_EQ(scale(std::nextafter(1.9375F, 0.0F), MxElement::e4m3, even), 119);
  EXPECT_EQ(scale(1.75F, MxElement::e4m3, compressed_tensors), 120);
  EXPECT_EQ(scale(std::nextafter(1.75F, 0.0F), MxElement::e4m3, compressed_tensors), 119);
  EXPECT_EQ(scale(1.75F, MxElement::e2m1, compressed_tensors), 126);
}

TEST(MxScale, RceilIntegerFormForEveryBf16) {
  for (uint32_t bits = 0; bits < 0x7f80U; ++bits) {
    const float amax = bf16_to_f32(static_cast<uint16_t>(bits));
    const uint32_t f32 = bits << 16;
    const auto exponent = static_cast<int>(f32 >> 23);
    const uint32_t mantissa = f32 & 0x7fffffU;
    ASSERT_EQ(mx_scale(amax, MxElement::e2m1, {rceil, true}), std::max(0, exponent - 2 + (mantissa > 0x400000U ? 1 : 0)))
        << bits;
    ASSERT_EQ(mx_scale(amax, MxElement::e4m3, {rceil, true}), std::max(0, exponent - 8 + (mantissa > 0x600000U ? 1 : 0)))
        << bits;
  }
}

TEST(MxScale, RceilIsTheSmallestScaleThatDoesNotSaturate) {
  const std::pair<MxElement, double> elements[] = {{MxElement::e2m1, 6}, {MxElement::e4m3, 448}, {MxElement::e5m2, 57344}};
  for (const auto& [element, max] : elements) {
    for (uint32_t bits = 0; bits < 0x7f80U; bits += 3) {
      const double amax = bf16_to_f32(static_cast<uint16_t>(bits));
      const int s = mx_scale(static_cast<float>(amax), element, {rceil, true});
      ASSERT_LE(amax, std::ldexp(max, s - 127)) << bits;
      if (s > 0) {
        ASSERT_GT(amax, std::ldexp(max, s - 128)) << bits;
      }
    }
  }
}

TEST(MxScale, TopClampKeepsTheMaximumFinite) {
  for (const MxScaleMode mode : {floor, ceil, even, rceil, nearest, compressed_tensors}) {
    EXPECT_LE(mx_scale(kBf16Max, MxElement::e2m1, {mode}), 252);
    EXPECT_LE(mx_scale(kBf16Max, MxElement::e4m3, {mode}), 246);
    EXPECT_LE(mx_scale(kBf16Max, MxElement::e5m2, {mode}), 239);
  }
  EXPECT_EQ(mx_scale(kBf16Max, MxElement::e2m1, {even, true}), 255);  // carried into the exponent of infinity
  EXPECT_EQ(mx_scale(kBf16Max, MxElement::e2m1, {ceil, true}), 253);
}

// ---- Invariants of 1.6
// ---------------------------------------------------------------------------------------------------------

struct Block {
  std::array<uint8_t, kMxBlock> codes;
  std::array<uint8_t, kMxfp4BlockBytes> packed;
  std::array<float, kMxBlock> values;
};

// A block whose largest magnitude code is `top`, holding every smaller code with both signs.
Block block_with_top(int top, int s) {
  Block block{};
  for (size_t i = 0; i < kMxBlock; ++i) {
    const int magnitude = static_cast<int>(i) % (top + 1);
    block.codes[i] = static_cast<uint8_t>(magnitude | (i >= kMxBlock / 2 ? 8 : 0));
  }
  block.packed = mxfp4_pack(block.codes);
  mxfp4_decode_block(block.packed, static_cast<uint8_t>(s), block.values);
  return block;
}

struct Requantized {
  std::array<uint8_t, kMxfp4BlockBytes> packed{};
  uint8_t scale = 0;
  std::array<float, kMxBlock> values{};
};

Requantized requantize(std::span<const float> values, const MxQuantizer& quantizer) {
  Requantized result;
  (void)mxfp4_quantize(values, quantizer, result.packed, std::span(&result.scale, 1));
  mxfp4_decode_block(result.packed, result.scale, result.values);
  return result;
}

TEST(MxInvariants, RequantisingKeepsValuesAndCanonicalBytes) {
  for (const MxScaleMode mode : {floor, rceil, even, compressed_tensors}) {
    for (int s = 0; s <= 252; ++s) {
      for (int top = 0; top < 8; ++top) {
        const Block block = block_with_top(top, s);
        const Requantized again = requantize(block.values, {mode});
        ASSERT_EQ(bits_of(again.values), bits_of(block.values)) << to_string(mode) << " s=" << s << " top=" << top;
        if (top >= 6) {
          ASSERT_EQ(again.packed, block.packed) << to_string(mode) << " s=" << s << " top=" << top;
          ASSERT_EQ(again.scale, s);
        } else if (s >= 3 && top > 0) {
          const int drop = s - again.scale;
          ASSERT_GE(drop, 1);
          ASSERT_LE(drop, 3);
        }
      }
    }
  }
}

TEST(MxInvariants, CeilAndNearestChangeValuesForTheListedMaxima) {
  for (int top = 1; top < 8; ++top) {
    const Block block = block_with_top(top, 127);
    const auto same = [&](MxScaleMode mode) {
      return bits_of(requantize(block.values, {mode}).values) == bits_of(block.values);
    };
    if (top == 7) {
      EXPECT_FALSE(same(ceil));
    }
    if (top == 6) {
      EXPECT_FALSE(same(nearest));
    }
    // A block of one magnitude shows that the maximum itself moves under NEAREST.
    std::array<float, kMxBlock> single{};
    single[0] = e2m1_to_f32(static_cast<uint8_t>(top));
    const bool kept = requantize(single, {nearest}).values[0] == single[0];
    EXPECT_EQ(kept, !(top == 1 || top == 2 || top == 4 || top == 6)) << top;
  }
}

// Standard deviation 0.02, that of initial weights: shares and errors depend on where the maxima fall between powers of two.
std::vector<std::array<float, kMxBlock>> gaussian_blocks(int count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<std::array<float, kMxBlock>> blocks(static_cast<size_t>(count));
  for (auto& block : blocks) {
    for (float& value : block) value = bf16_to_f32(f32_to_bf16(normal(random)));
  }
  return blocks;
}

TEST(MxInvariants, QuantisingTwiceIsStable) {
  int other_bytes = 0;
  const auto blocks = gaussian_blocks(10000);
  for (const auto& block : blocks) {
    for (const MxScaleMode mode : {floor, even, rceil}) {
      const Requantized once = requantize(block, {mode});
      const Requantized twice = requantize(once.values, {mode});
      ASSERT_EQ(bits_of(once.values), bits_of(twice.values));
      const bool same_bytes = once.packed == twice.packed && once.scale == twice.scale;
      if (mode == rceil) {
        other_bytes += same_bytes ? 0 : 1;
      } else {
        ASSERT_TRUE(same_bytes) << to_string(mode);
      }
    }
  }
  EXPECT_NEAR(other_bytes / 10000.0, 0.28, 0.02);  // the share the source of the invariant states
}

TEST(MxInvariants, ErrorOnGaussianBlocks) {
  const auto blocks = gaussian_blocks(4000);
  const auto error = [&](MxElement element, MxScaleMode mode) {
    double difference = 0;
    double norm = 0;
    for (const auto& block : blocks) {
      std::array<float, kMxBlock> decoded{};
      uint8_t scale = 0;
      if (element == MxElement::e2m1) {
        decoded = requantize(block, {mode}).values;
      } else {
        std::array<uint8_t, kMxBlock> codes{};
        (void)mxfp8_quantize(element, block, {mode}, codes, std::span(&scale, 1));
        mxfp8_decode(element, codes, std::span(&scale, 1), decoded);
      }
      for (size_t i = 0; i < kMxBlock; ++i) {
        difference += std::pow(double{decoded[i]} - block[i], 2);
        norm += std::pow(double{block[i]}, 2);
      }
    }
    return std::sqrt(difference / norm);
  };
  const std::tuple<MxElement, MxScaleMode, double> table[] = {
      {MxElement::e2m1, floor, 0.115}, {MxElement::e2m1, rceil, 0.119}, {MxElement::e2m1, even, 0.113},
      {MxElement::e2m1, ceil, 0.137},  {MxElement::e4m3, floor, 0.029}, {MxElement::e4m3, rceil, 0.0265},
      {MxElement::e4m3, even, 0.0276}, {MxElement::e4m3, ceil, 0.0265},
  };
  for (const auto& [element, mode, wanted] : table)
    EXPECT_NEAR(error(element, mode), wanted, 0.03 * wanted) << to_string(element) << " " << to_string(mode);
}

TEST(MxInvariants, Mxfp4IsExactInMxfp8) {
  for (const MxScaleMode mode : {floor, rceil}) {
    for (int s = 0; s <= 252; ++s) {
      for (int top = 0; top < 8; ++top) {
        const Block block = block_with_top(top, s);
        std::array<uint8_t, kMxBlock> codes{};
        uint8_t scale = 0;
        EXPECT_EQ(mxfp8_quantize(MxElement::e4m3, block.values, {mode}, codes, std::span(&scale, 1)), 0);
        std::array<float, kMxBlock> decoded{};
        mxfp8_decode(MxElement::e4m3, codes, std::span(&scale, 1), decoded);
        ASSERT_EQ(bits_of(decoded), bits_of(block.values)) << to_string(mode) << " s=" << s << " top=" << top;
      }
    }
  }
}

TEST(MxInvariants, ScalesFourteenApartShareOneE4m3Scale) {
  for (const int spread : {0, 1, 13, 14, 15}) {
    const int largest = 130;
    bool exact = true;
    for (const int s : {largest, largest - spread}) {
      for (uint8_t code = 0; code < 16; ++code) {
        const float scaled = std::ldexp(e2m1_to_f32(code), s - largest + 6);
        exact = exact && e4m3_to_f32(f32_to_e4m3(scaled)) == scaled;
      }
    }
    EXPECT_EQ(exact, spread <= 14) << spread;
  }
}

// ---- Packings of 1.7
// --------------------------------------------------------------------------------------------------------------

TEST(MxPackings, LayoutsOfTheSameBlock) {
  std::array<uint8_t, kMxfp4BlockBytes> a{};
  std::array<uint8_t, kMxfp4BlockBytes> l{};
  std::ranges::copy(from_hex("10 32 54 76 98 ba dc fe 10 32 54 76 98 ba dc fe"), a.begin());
  std::ranges::copy(from_hex("c2 85 e3 00 c2 85 e3 00 c2 85 e3 00 c2 85 e3 00"), l.begin());
  EXPECT_THAT(mxfp4_to_mlx(a), ElementsAreArray({0x76543210U, 0xfedcba98U, 0x76543210U, 0xfedcba98U}));
  EXPECT_THAT(mxfp4_to_mlx(l), ElementsAreArray({0x00e385c2U, 0x00e385c2U, 0x00e385c2U, 0x00e385c2U}));
  EXPECT_EQ(hex(mxfp4_to_gguf(a, 0x7f)), hex(from_hex("7f 00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff")));
  EXPECT_EQ(hex(mxfp4_to_gguf(l, 0x79)), hex(from_hex("79 22 cc 55 88 33 ee 00 00 22 cc 55 88 33 ee 00 00")));
}

TEST(MxPackings, RoundTripsOfRandomBytes) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    std::array<uint8_t, kMxfp4BlockBytes> packed{};
    for (uint8_t& byte : packed) byte = static_cast<uint8_t>(random());
    EXPECT_EQ(mxfp4_pack(mxfp4_unpack(packed)), packed);
    EXPECT_EQ(mxfp4_from_mlx(mxfp4_to_mlx(packed)), packed);
    const Mxfp4Block back = mxfp4_from_gguf(mxfp4_to_gguf(packed, 77));
    EXPECT_EQ(back.packed, packed);
    EXPECT_EQ(back.scale, 77);
  }
}

TEST(MxSizes, PartBlocksAreRefused) {
  std::vector<float> values(33);
  std::vector<uint8_t> packed(17);
  std::vector<uint8_t> scales(2);
  EXPECT_THROW((void)mxfp4_quantize(values, {floor}, packed, scales), Error);
  EXPECT_THROW(mxfp4_decode(packed, scales, values), Error);
  EXPECT_THROW(mxfp8_decode(MxElement::e2m1, packed, scales, values), Error);
}

}  // namespace
}  // namespace weft
