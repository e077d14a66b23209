// Stored weights: every format of one matrix gives the same bits, rounding is left out where asked, rows are widened exactly.
#include <algorithm>
#include <array>
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
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::mxfp4}) {
    const TestWeight table = random_weight(random_, format, 9, 64);
    const std::array<int32_t, 4> ids = {8, 0, 3, 8};
    Tensor found = empty({4, 64});
    embed(cpu_, ids, table.view(), found.mutable_view());
    // A one-hot product reads the same row.
    Tensor identity = empty({64, 64});
    for (size_t c = 0; c < 64; ++c) identity.as<float>()[c * 65] = 1.0F;
    for (size_t t = 0; t < ids.size(); ++t) {
      Tensor row = empty({64, 1});
      linear(reference_, identity.view(), table.view().rows(ids[t], ids[t] + 1), row.mutable_view(), true);
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
