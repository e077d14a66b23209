// Stored weights: every format of one matrix gives the same bits, rounding is left out where asked, rows are widened exactly.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/mx.h"
#include "ops/cpu/packed_rows.h"
#include "ops/ops.h"
#include "ops/ops_test_util.h"
#include "ops/targets_test_util.h"

namespace weft::ops {
namespace {

class Weights : public testing::TestWithParam<std::tuple<int64_t, Profile>> {
 protected:
  static Profile profile() { return std::get<1>(GetParam()); }
  static bool rounds() { return profile() == Profile::bf16; }
  // Whether products of packed and bf16 weights multiply pairs of bf16 values.
  static bool pairs() { return cpu::row_form(WeightFormat::bf16, rounds()) == cpu::RowForm::bf16; }

  UseTarget use_{std::get<0>(GetParam())};
  TestContext reference_{Backend::reference, profile()};
  TestContext cpu_{Backend::cpu, profile(), 2};
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(
    All, Weights, testing::Combine(testing::ValuesIn(dispatch_targets()), testing::Values(Profile::exact, Profile::bf16)),
    [](const auto& each) {
      return fmt::format("{}_{}", hwy::TargetName(std::get<0>(each.param)), to_string(std::get<1>(each.param)));
    });

// A packed weight and its widened copies are the same matrix, so every format gives the same bits; except float32 beside
// products of bf16 pairs, which sum in another order.
TEST_P(Weights, FormatsOfOneMatrixGiveTheSameBits) {
  for (const int64_t rows : {1, 3, 70}) {
    const int64_t in = 320;
    const int64_t out = 21;
    const TestWeight packed = random_weight(random_, WeightFormat::mxfp4, out, in);
    constexpr std::array<float, 8> kMagnitudes = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    std::vector<float> values;
    TestWeight narrow = random_weight(random_, WeightFormat::bf16, out, in);
    for (int64_t i = 0; i < out * in; ++i) {
      const auto byte = static_cast<unsigned>(packed.view().data[i / 2]);
      const unsigned code = i % 2 == 0 ? byte & 15U : byte >> 4U;
      const float magnitude = std::ldexp(kMagnitudes[code & 7U], static_cast<int>(packed.view().scales[i / 32]) - 127);
      values.push_back((code & 8U) != 0 ? -magnitude : magnitude);
      const uint16_t bits = f32_to_bf16(values.back());
      std::memcpy(narrow.data.data() + 1 + 2 * i, &bits, 2);
    }
    const TestWeight wide = f32_weight(out, in, values);
    const Tensor x = random(random_, {rows, in}, 1.0, rounds());
    for (TestContext* context : {&reference_, &cpu_}) {
      Tensor a = empty({rows, out});
      Tensor b = empty({rows, out});
      Tensor c = empty({rows, out});
      linear(*context, x.view(), packed.view(), a.mutable_view());
      linear(*context, x.view(), narrow.view(), b.mutable_view());
      linear(*context, x.view(), wide.view(), c.mutable_view());
      expect_same_bits(a.view(), b.view(), "mxfp4 and bf16");
      if (context == &reference_ || !pairs()) expect_same_bits(b.view(), c.view(), "bf16 and f32");
    }
  }
}

// The value of a quantized weight, from what its format means.
float value_of(const WeightView& weight, int64_t row, int64_t column) {
  const auto real = [&](const std::byte* from, int64_t index) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + index * weight.scale_size(), static_cast<size_t>(weight.scale_size()));
    if (weight.scale_type == ScaleType::bf16) bits <<= 16U;
    if (weight.scale_type != ScaleType::f16) return std::bit_cast<float>(bits);
    const float magnitude = std::ldexp(static_cast<float>((bits & 1023U) | ((bits & 0x7C00U) != 0 ? 1024U : 0U)),
                                       static_cast<int>(std::max(1U, bits >> 10U & 31U)) - 25);
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
  };
  if (weight.format == WeightFormat::fp8_block) {
    const auto code = static_cast<unsigned>(weight.data[row * weight.in + column]);
    const unsigned exponent = code >> 3U & 15U;
    const float magnitude =
        std::ldexp(static_cast<float>((code & 7U) + (exponent != 0 ? 8U : 0U)), static_cast<int>(std::max(1U, exponent)) - 10);
    const int64_t blocks = (weight.in + 127) / 128;
    const float scale = real(weight.scales, (weight.block_row + row) / 128 * blocks + column / 128);
    return ((code & 128U) != 0 ? -magnitude : magnitude) * scale;
  }
  unsigned code = 0;
  for (int64_t i = 0; i < weight.bits; ++i) {  // bit i of the code
    const int64_t bit = (row * weight.in + column) * weight.bits + i;
    code |= (static_cast<unsigned>(weight.data[bit / 8]) >> (bit % 8) & 1U) << i;
  }
  const int64_t group = (row * weight.in + column) / weight.group;
  const float product = static_cast<float>(code) * real(weight.scales, group);
  return product + real(weight.biases, group);
}

// An FP8 or affine weight gives the bits of its float32 twin, in every number of rows and for every part of its rows.
TEST_P(Weights, QuantizedWeightsGiveTheBitsOfTheirTwins) {
  for (const suite::WeightForm& form : suite::all_forms()) {
    if (!form.quantized()) continue;
    SCOPED_TRACE(suite::to_string(form));
    for (const int64_t in : {320, 333, 640}) {
      if (!form.holds(in)) continue;
      const int64_t out = 150;
      const TestWeight packed = random_weight(random_, form, out, in);
      std::vector<float> values;
      for (int64_t i = 0; i < out * in; ++i) values.push_back(value_of(packed.view(), i / in, i % in));
      const TestWeight wide = f32_weight(out, in, values);
      for (const int64_t rows : {1, 2, 3, 4, 5, 70}) {
        const Tensor x = random(random_, {rows, in}, 1.0, rounds());
        for (TestContext* context : {&reference_, &cpu_}) {
          Tensor a = empty({rows, out});
          Tensor b = empty({rows, out});
          linear(*context, x.view(), packed.view(), a.mutable_view());
          linear(*context, x.view(), wide.view(), b.mutable_view());
          expect_same_bits(a.view(), b.view(), "all rows");
        }
        if (rows != 1 && rows != 5) continue;
        for (const auto& [begin, end] : {std::pair{0, 7}, {27, 29}, {28, 150}, {127, 133}}) {  // FP8 blocks end at 28 or 128
          Tensor a = empty({rows, end - begin});
          Tensor b = empty({rows, end - begin});
          linear(cpu_, x.view(), packed.view().rows(1, out).rows(begin - 1 + (begin == 0), end - 1 + (begin == 0)),
                 a.mutable_view());
          linear(cpu_, x.view(), wide.view().rows(begin + (begin == 0), end + (begin == 0)), b.mutable_view());
          expect_same_bits(a.view(), b.view(), "some rows");
        }
      }
    }
  }
}

// The bytes of literal codes: those of consecutive values follow each other from the lowest bit on.
TEST_P(Weights, AffineCodesOfEveryWidth) {
  const auto codes_of = [&](uint8_t bits, std::vector<uint8_t> bytes, size_t count) {
    bytes.resize(static_cast<size_t>(bits) * 4);
    const std::array<uint16_t, 2> scale_and_bias = {0x3F80, 0};
    WeightView weight = suite::WeightForm::affine(bits, 32).shape(1, 32);
    weight.data = reinterpret_cast<const std::byte*>(bytes.data());
    weight.scales = reinterpret_cast<const std::byte*>(scale_and_bias.data());
    weight.biases = reinterpret_cast<const std::byte*>(scale_and_bias.data() + 1);
    Tensor identity = empty({32, 32});
    for (size_t c = 0; c < 32; ++c) identity.as<float>()[c * 33] = 1.0F;
    Tensor y = empty({32, 1});
    linear(cpu_, identity.view(), weight, y.mutable_view());
    std::vector<int> codes(y.as<float>().begin(), y.as<float>().begin() + static_cast<int64_t>(count));
    return codes;
  };
  const std::vector<int> ascending = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(codes_of(2, {0xE4, 0x1B}, 8), (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(codes_of(3, {0x88, 0xC6, 0xFA}, 8), ascending);
  EXPECT_EQ(codes_of(4, {0x10, 0x32, 0x54, 0x76}, 8), ascending);
  EXPECT_EQ(codes_of(5, {0x20, 0x88, 0x41, 0x8A, 0x39}, 8), ascending);
  EXPECT_EQ(codes_of(6, {0x40, 0x20, 0x0C, 0x44, 0x61, 0x1C}, 8), ascending);
  EXPECT_EQ(codes_of(8, {0, 1, 2, 3, 4, 5, 250, 255}, 8), (std::vector<int>{0, 1, 2, 3, 4, 5, 250, 255}));
}

// Every E4M3 code in every place of a unit, under ordinary and extreme scales.
TEST_P(Weights, E4m3Codes) {
  constexpr std::array<std::pair<unsigned, float>, 8> kKnown = {
      {{0x01, 0x1p-9F}, {0x07, 0x1.cp-7F}, {0x08, 0x1p-6F}, {0x38, 1}, {0x77, 240}, {0x78, 256}, {0x7E, 448}, {0xFE, -448}}};
  for (const float scale : {1.0F, -0.37F, 0x1p-126F, 0x1.8p-140F, 0x1.fp119F}) {
    for (unsigned turn = 0; turn < 32; ++turn) {
      std::vector<std::byte> codes(256 * 32);
      for (unsigned code = 0; code < 256; ++code) codes[code * 32 + (code + turn) % 32] = static_cast<std::byte>(code);
      const std::array<float, 2> scales = {scale, scale};
      WeightView weight = suite::WeightForm::fp8(ScaleType::f32).shape(256, 32);
      weight.data = codes.data();
      weight.scales = reinterpret_cast<const std::byte*>(scales.data());
      Tensor x = empty({1 + turn % 5, 32});
      std::ranges::fill(x.as<float>(), 1.0F);
      Tensor y = empty({1 + turn % 5, 256});
      linear(cpu_, x.view(), weight, y.mutable_view(), true);
      for (unsigned code = 0; code < 256; ++code) {
        if ((code & 127U) == 127) {
          EXPECT_TRUE(std::isnan(y.as<float>()[code])) << "code " << code << ", place " << (code + turn) % 32;
        } else {
          EXPECT_EQ(y.as<float>()[code], value_of(weight, code, (code + turn) % 32)) << "code " << code << ", scale " << scale;
        }
      }
      if (scale != 1.0F) continue;
      for (const auto& [code, value] : kKnown) EXPECT_EQ(y.as<float>()[code], value) << "code " << code;
    }
  }
}

TEST_P(Weights, KeepF32LeavesOutTheRounding) {
  const TestWeight weight = random_weight(random_, WeightFormat::bf16, 8, 64);
  const Tensor x = random(random_, {3, 64}, 1.0, rounds());
  TestContext exact{Backend::cpu, Profile::exact};
  Tensor wanted = empty({3, 8});
  Tensor found = empty({3, 8});
  linear(exact, x.view(), weight.view(), wanted.mutable_view());
  linear(cpu_, x.view(), weight.view(), found.mutable_view(), true);
  if (pairs()) {
    expect_close(found.view(), wanted.view(), 1e-6, "keep_f32");  // another order of summation
    wanted = found;
  }
  expect_same_bits(found.view(), wanted.view(), "keep_f32");
  linear(cpu_, x.view(), weight.view(), found.mutable_view());
  for (size_t i = 0; i < 24; ++i) {
    const float wanted_value = rounds() ? bf16_to_f32(f32_to_bf16(wanted.as<float>()[i])) : wanted.as<float>()[i];
    EXPECT_EQ(found.as<float>()[i], wanted_value);
  }
}

TEST_P(Weights, EmbedReadsRowsOfEveryFormat) {
  for (const suite::WeightForm& form : suite::all_forms()) {
    if (!form.holds(64)) continue;
    const TestWeight table = random_weight(random_, form, 9, 64);
    const std::array<int32_t, 4> ids = {8, 0, 3, 8};
    Tensor found = empty({4, 64});
    embed(cpu_, ids, table.view(), found.mutable_view());
    // A one-hot product reads the same row.
    Tensor identity = empty({64, 64});
    for (size_t c = 0; c < 64; ++c) identity.as<float>()[c * 65] = 1.0F;
    for (size_t t = 0; t < ids.size(); ++t) {
      Tensor row = empty({64, 1});
      linear(reference_, identity.view(), table.view().rows(ids[t], ids[t] + 1),
             row.mutable_view());  // rounded as the profile says
      for (size_t c = 0; c < 64; ++c) EXPECT_EQ(found.as<float>()[t * 64 + c], row.as<float>()[c]);
    }
  }
}

// Kernels and the codec decode MXFP4 by their own tables; they must agree for every code, scale and number of rows.
TEST_P(Weights, KernelsAgreeWithTheCodec) {
  for (unsigned scale = 0; scale < 256; ++scale) {
    // Row o holds code o in column (2 o + scale) mod 32 and zeros elsewhere, so that infinite products meet no zero.
    std::vector<std::byte> packed(16 * 16);
    for (unsigned o = 0; o < 16; ++o) {
      const unsigned column = (2 * o + scale) % 32;
      packed[o * 16 + column / 2] = static_cast<std::byte>(column % 2 == 0 ? o : o << 4U);
    }
    const std::vector<std::byte> scales(16, static_cast<std::byte>(scale));
    const WeightView weight{WeightFormat::mxfp4, 16, 32, packed.data(), scales.data()};
    for (const int64_t rows : {1, 2, 3, 4, 5, 7}) {
      Tensor x = empty({rows, 32});
      std::ranges::fill(x.as<float>(), 1.0F);
      Tensor y = empty({rows, 16});
      linear(cpu_, x.view(), weight, y.mutable_view());
      for (size_t i = 0; i < y.as<float>().size(); ++i) {
        std::array<uint8_t, 16> group{};
        std::memcpy(group.data(), packed.data() + i % 16 * 16, 16);
        std::array<float, 32> values{};
        mxfp4_decode_block(group, static_cast<uint8_t>(scale), values);
        const float wanted = values[(2 * (i % 16) + scale) % 32];
        const float found = y.as<float>()[i];
        const std::string what = fmt::format("scale {}, code {}, rows {}", scale, i % 16, rows);
        if (scale == 255) {
          EXPECT_TRUE(std::isnan(found)) << what;
        } else if (rounds() && std::fabs(wanted) < 0x1p-126F) {
          EXPECT_TRUE(found == wanted || found == 0.0F) << what;  // products of bf16 pairs flush subnormals
        } else {
          EXPECT_EQ(found, wanted) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::ops
