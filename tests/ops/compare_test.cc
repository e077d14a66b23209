// The fast back end against the reference, at the sizes where vector code breaks.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/mx.h"
#include "ops/ops.h"
#include "ops/ops_test_util.h"

namespace weft::ops {
namespace {

constexpr std::array<int64_t, 11> kSizes = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127};

class Compare : public testing::TestWithParam<Profile> {
 protected:
  // Differences between two orders of summation: `exact` for float32 results, one bf16 step of the largest value where the
  // result is rounded to bf16 (both orders may fall on different sides of a rounding boundary).
  [[nodiscard]] double tolerance(double exact) const { return GetParam() == Profile::exact ? exact : 0x1p-7; }
  [[nodiscard]] bool rounds() const { return GetParam() == Profile::bf16; }

  TestContext reference_{Backend::reference, GetParam()};
  TestContext cpu_{Backend::cpu, GetParam(), 2};
  Random random_{7};
};

INSTANTIATE_TEST_SUITE_P(Profiles, Compare, testing::Values(Profile::exact, Profile::bf16),
                         [](const auto& each) { return std::string(to_string(each.param)); });

// |a - b| <= in * 2^-24 * max|x| max|w| * 4 (the usual bound of a float32 sum), plus a bf16 step.
void expect_products_close(const Tensor& found, const Tensor& wanted, int64_t in, double range, bool rounds,
                           const std::string& what) {
  const std::span<const float> a = found.as<float>();
  const std::span<const float> b = wanted.as<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    const double allowed = 4 * 0x1p-24 * static_cast<double>(in) * range + (rounds ? 0x1p-7 * std::fabs(b[i]) : 0.0);
    ASSERT_NEAR(a[i], b[i], allowed) << what << ", element " << i;
  }
}

TEST_P(Compare, Linear) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::mxfp4}) {
    for (const int64_t in : {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 256, 300, 544}) {
      if (format == WeightFormat::mxfp4 && in % 32 != 0) continue;
      for (const int64_t out : kSizes) {
        const TestWeight weight = random_weight(random_, format, out, in);
        for (const int64_t rows : {1, 2, 3, 4, 5, 17, 65}) {
          const Tensor x = random(random_, {rows, in}, 1.0, rounds());
          Tensor wanted = empty({rows, out});
          Tensor found = empty({rows, out});
          linear(reference_, x.view(), weight.view(), wanted.mutable_view());
          linear(cpu_, x.view(), weight.view(), found.mutable_view());
          const std::string what = fmt::format("format {} in {} out {} rows {}", static_cast<int>(format), in, out, rows);
          expect_products_close(found, wanted, in, format == WeightFormat::mxfp4 ? 6.0 * 4 : 0.5, rounds(), what);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A packed weight and its widened copies are the same matrix, so every format gives the same bits.
TEST_P(Compare, FormatsOfOneMatrixGiveTheSameBits) {
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
      expect_same_bits(a.view(), c.view(), "mxfp4 and f32");
      expect_same_bits(b.view(), c.view(), "bf16 and f32");
    }
  }
}

TEST_P(Compare, KeepF32LeavesOutTheRounding) {
  const TestWeight weight = random_weight(random_, WeightFormat::bf16, 8, 64);
  const Tensor x = random(random_, {3, 64}, 1.0, rounds());
  TestContext exact{Backend::cpu, Profile::exact};
  Tensor wanted = empty({3, 8});
  Tensor found = empty({3, 8});
  linear(exact, x.view(), weight.view(), wanted.mutable_view());
  linear(cpu_, x.view(), weight.view(), found.mutable_view(), true);
  expect_same_bits(found.view(), wanted.view(), "keep_f32");
  linear(cpu_, x.view(), weight.view(), found.mutable_view());
  for (size_t i = 0; i < 24; ++i) {
    const float wanted_value = rounds() ? bf16_to_f32(f32_to_bf16(wanted.as<float>()[i])) : wanted.as<float>()[i];
    EXPECT_EQ(found.as<float>()[i], wanted_value);
  }
}

TEST_P(Compare, EmbedReadsRowsOfEveryFormat) {
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

TEST_P(Compare, GatherRows) {
  const Tensor x = random(random_, {5, 7});
  const std::array<int64_t, 3> rows = {4, 0, 4};
  Tensor out = empty({3, 7});
  gather_rows(cpu_, x.view(), rows, out.mutable_view());
  for (int64_t i = 0; i < 3; ++i) {
    expect_same_bits(rows_of(std::as_const(out), i, i + 1),
                     rows_of(x, rows[static_cast<size_t>(i)], rows[static_cast<size_t>(i)] + 1), "row");
  }
}

TEST_P(Compare, Moe) {
  const Activation activation{Activation::Kind::situ, 4.0F, 25.0F};
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::mxfp4}) {
    for (const auto& [rows, experts, chosen, size, middle] : std::vector<std::array<int64_t, 5>>{
             {1, 8, 2, 32, 64}, {5, 3, 3, 64, 32}, {33, 17, 4, 96, 160}, {127, 5, 2, 64, 96}, {300, 4, 3, 32, 32}}) {
      std::vector<TestWeight> stored;
      for (int64_t e = 0; e < experts; ++e) {
        stored.push_back(random_weight(random_, format, middle, size));
        stored.push_back(random_weight(random_, format, size, middle));
        stored.push_back(random_weight(random_, format, middle, size));
      }
      std::vector<ExpertView> views;
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
        views.push_back({stored[3 * e].view(), stored[3 * e + 1].view(), stored[3 * e + 2].view()});
      }
      const Tensor logits = random(random_, {rows, experts}, 3.0);
      const Tensor bias = random(random_, {experts}, 0.5);
      Tensor ids = Tensor::zeros(DType::i32, {rows, chosen});
      Tensor weights = empty({rows, chosen});
      route(reference_, {chosen, true, 1.5F}, logits.view(), bias.view(), ids.mutable_view(), weights.mutable_view());
      const Tensor z = random(random_, {rows, size}, 1.0, rounds());
      Tensor wanted = empty({rows, size});
      Tensor found = empty({rows, size});
      moe(reference_, activation, z.view(), ids.view(), weights.view(), views, wanted.mutable_view());
      moe(cpu_, activation, z.view(), ids.view(), weights.view(), views, found.mutable_view());
      expect_close(found.view(), wanted.view(), tolerance(2e-6), "moe");
    }
  }
}

TEST_P(Compare, KdaRecurrence) {
  for (const int64_t d : kSizes) {
    for (const int64_t heads : {1, 3}) {
      const int64_t rows = 9;
      const Tensor q = random(random_, {rows, heads * d}, 2.0, rounds());
      const Tensor k = random(random_, {rows, heads * d}, 2.0, rounds());
      const Tensor v = random(random_, {rows, heads * d}, 2.0, rounds());
      Tensor g = random(random_, {rows, heads * d}, 2.5);
      for (float& value : g.as<float>()) value -= 2.5F;
      const Tensor beta = random(random_, {rows, heads}, 3.0, rounds());
      const Tensor initial = random(random_, {heads * d, d});
      std::array<Tensor, 2> o = {empty({rows, heads * d}), empty({rows, heads * d})};
      std::array<Tensor, 2> states = {initial, initial};
      std::array<Tensor, 2> fresh = {random(random_, {heads * d, d}), random(random_, {heads * d, d})};
      for (const size_t i : {0, 1}) {
        const std::array<StateSegment, 2> segments = {
            StateSegment{0, 5, states[i].as<float>().data(), states[i].as<float>().data()},
            StateSegment{5, 4, nullptr, fresh[i].as<float>().data()}};
        Context& context = i == 0 ? reference_.context : cpu_.context;
        kda_recurrence(context, q.view(), k.view(), v.view(), g.view(), beta.view(), segments, o[i].mutable_view());
      }
      expect_close(o[1].view(), o[0].view(), tolerance(4e-6), "o");
      expect_close(states[1].view(), states[0].view(), 4e-6, "continued state");
      expect_close(fresh[1].view(), fresh[0].view(), 4e-6, "new state");
    }
  }
}

TEST_P(Compare, MlaParts) {
  for (const MlaShape& shape :
       {MlaShape{1, 1, 1, 1, 1}, MlaShape{2, 8, 4, 8, 16}, MlaShape{13, 17, 3, 15, 33}, MlaShape{3, 16, 0, 31, 65}}) {
    for (const int64_t rows : {1, 3, 17}) {
      const TestWeight kv_b =
          random_weight(random_, WeightFormat::bf16, shape.heads * (shape.nope + shape.value), shape.latent);
      const Tensor q = random(random_, {rows, shape.heads * (shape.nope + shape.rope)}, 1.0, rounds());
      Tensor wanted = empty({rows, shape.heads * shape.latent});
      Tensor found = empty({rows, shape.heads * shape.latent});
      mla_absorb_query(reference_, shape, q.view(), kv_b.view(), wanted.mutable_view());
      mla_absorb_query(cpu_, shape, q.view(), kv_b.view(), found.mutable_view());
      expect_close(found.view(), wanted.view(), 2e-6, "mla_absorb_query");  // float32 in both profiles
      Tensor wanted_o = empty({rows, shape.heads * shape.value});
      Tensor found_o = empty({rows, shape.heads * shape.value});
      mla_project_value(reference_, shape, wanted.view(), kv_b.view(), wanted_o.mutable_view());
      mla_project_value(cpu_, shape, wanted.view(), kv_b.view(), found_o.mutable_view());
      expect_close(found_o.view(), wanted_o.view(), tolerance(2e-6), "mla_project_value");
    }
  }
}

TEST_P(Compare, MlaAttention) {
  const MlaShape shape{13, 8, 4, 8, 33};
  // Two sequences: one that begins, one that continues beyond two blocks of 256.
  for (const auto& [start, count] : {std::pair<int64_t, int64_t>{0, 1}, {63, 2}, {255, 3}, {256, 1}, {500, 40}}) {
    std::vector<Tensor> pages;
    std::vector<float*> first;
    std::vector<float*> second;
    for (int64_t i = 0; i < 1; ++i) first.push_back(pages.emplace_back(random(random_, {kPageTokens, 37})).as<float>().data());
    for (int64_t i = 0; i < 10; ++i)
      second.push_back(pages.emplace_back(random(random_, {kPageTokens, 37})).as<float>().data());
    const int64_t rows = 5 + count;
    const std::array<PagedSegment, 2> segments = {PagedSegment{0, 5, 2, first}, PagedSegment{5, count, start, second}};
    const Tensor q = random(random_, {rows, 13 * 12}, 3.0);
    const Tensor ql = random(random_, {rows, 13 * 33}, 3.0);
    Tensor wanted = empty({rows, 13 * 33});
    Tensor found = empty({rows, 13 * 33});
    mla_attention(reference_, shape, q.view(), ql.view(), segments, wanted.mutable_view());
    mla_attention(cpu_, shape, q.view(), ql.view(), segments, found.mutable_view());
    expect_close(found.view(), wanted.view(), 1e-5, "mla_attention");
  }
}

// Kernels and codecs decode MXFP4 by their own tables; they must agree for every code and scale.
TEST(Mx, KernelsAgreeWithTheCodec) {
  for (int scale = 0; scale < 253; ++scale) {
    std::array<uint8_t, 16> packed{};
    for (size_t j = 0; j < 16; ++j) packed[j] = static_cast<uint8_t>((j << 4U) | (15 - j));
    const auto scale_byte = static_cast<uint8_t>(scale);
    const WeightView weight{WeightFormat::mxfp4, 1, 32, reinterpret_cast<const std::byte*>(packed.data()),
                            reinterpret_cast<const std::byte*>(&scale_byte)};
    std::array<float, 32> wanted{};
    mxfp4_decode_block(packed, scale_byte, wanted);
    TestContext cpu{Backend::cpu};
    Tensor x = empty({32, 32});
    for (size_t c = 0; c < 32; ++c) x.as<float>()[c * 33] = 1.0F;
    Tensor many = empty({32, 1});
    linear(cpu, x.view(), weight, many.mutable_view());
    for (int64_t c = 0; c < 32; ++c) {
      Tensor one = empty({1, 1});
      linear(cpu, rows_of(x, c, c + 1), weight, one.mutable_view());
      EXPECT_EQ(one.as<float>()[0], wanted[static_cast<size_t>(c)]) << "scale " << scale << ", column " << c;
      EXPECT_EQ(many.as<float>()[static_cast<size_t>(c)], wanted[static_cast<size_t>(c)]);
    }
  }
}

}  // namespace
}  // namespace weft::ops
