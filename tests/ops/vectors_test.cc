// The unit vectors of K3 spec 8.3, on every back end. Tolerance 1e-6 relative to max(1, |value|): the vectors are float64
// results and the operators compute in float32.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "ops/cpu/dense.h"
#include "ops/ops.h"
#include "ops/ops_test_util.h"

namespace weft::ops {
namespace {

constexpr double kTolerance = 1e-6;

class Vectors : public testing::TestWithParam<Backend> {
 protected:
  TestContext exact_{GetParam()};
  TestContext bf16_{GetParam(), Profile::bf16};
};

INSTANTIATE_TEST_SUITE_P(Backends, Vectors, testing::Values(Backend::reference, Backend::cpu),
                         [](const auto& each) { return std::string(to_string(each.param)); });

constexpr std::array<uint8_t, 16> kPacked = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
                                             0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78};
constexpr std::array<float, 32> kDecoded = {
    0, 0.125F, 0.25F,  0.375F, 0.5F,  0.75F, 1,      1.5F,    -0.0F, -0.125F, -0.25F, -0.375F, -0.5F, -0.75F, -1,  -1.5F, -1.5F,
    0, -1,     0.125F, -0.75F, 0.25F, -0.5F, 0.375F, -0.375F, 0.5F,  -0.25F,  0.75F,  -0.125F, 1,     -0.0F,  1.5F};

// Columns of a one-row weight, read out by one-hot inputs.
std::vector<float> columns(Context& context, uint8_t scale, std::optional<uint8_t> all_bytes = {}) {
  std::array<uint8_t, 16> packed = kPacked;
  if (all_bytes) packed.fill(*all_bytes);
  const WeightView weight{WeightFormat::mxfp4, 1, 32, reinterpret_cast<const std::byte*>(packed.data()),
                          reinterpret_cast<const std::byte*>(&scale)};
  Tensor x = empty({32, 32});
  for (size_t c = 0; c < 32; ++c) x.as<float>()[c * 33] = 1.0F;
  Tensor y = empty({32, 1});
  linear(context, x.view(), weight, y.mutable_view());
  return {y.as<float>().begin(), y.as<float>().end()};
}

TEST_P(Vectors, Mxfp4Decode) {
  for (TestContext* context : {&exact_, &bf16_}) {
    const std::vector<float> found = columns(*context, 125);
    for (size_t c = 0; c < 32; ++c) EXPECT_EQ(found[c], kDecoded[c]) << "column " << c;  // code 8 is -0 == 0
    // Column 2 holds the value 1, so it shows the scale itself; 1 * 2^-127 and 0.5 * 2^-127 are subnormal.
    EXPECT_EQ(columns(*context, 118)[2], 0.001953125F);
    EXPECT_EQ(columns(*context, 127)[2], 1.0F);
    // Products of bf16 pairs flush those to zero (docs/cpu_kernels.md).
    const bool flushed = context == &bf16_ && context->context.backend == Backend::cpu &&
                         std::string_view(cpu::dispatch_target()) == "AVX3_BF16";
    EXPECT_EQ(columns(*context, 0)[2], flushed ? 0.0F : 0x1p-127F);
    EXPECT_EQ(columns(*context, 0)[1], flushed ? 0.0F : 0x1p-128F);
    // 6 * 2^127 is beyond float32, so scale 254 is read by a row of the values 0.5 and 1 only.
    EXPECT_EQ(columns(*context, 254, 0x21)[1], 0x1p127F);
    EXPECT_EQ(columns(*context, 254, 0x21)[2], 0x1p126F);
  }
  // An unchecked scale byte 255 never passes for a number.
  EXPECT_TRUE(std::isnan(columns(exact_, 255)[2]));
}

TEST_P(Vectors, Situ) {
  const Tensor gate = f32({1, 10}, {0, 1, -1, 2, 4, -4, 8, -8, 100, 0.5F});
  const Tensor up = f32({1, 10}, {1, 1, 1, -3, 10, 10, 50, 50, 1000, -0.25F});
  const Activation activation{Activation::Kind::situ, 4.0F, 25.0F};
  Tensor y = empty({1, 10});
  gated_activation(exact_, activation, gate.view(), up.view(), y.mutable_view());
  expect_values(
      y,
      {0, 0.715817828, -0.263334663, -4.861066551, 28.416229523, -0.520461399, 92.903751778, -0.031165737, 100, -0.077402106},
      kTolerance);
  gated_activation(bf16_, activation, gate.view(), up.view(), y.mutable_view());
  expect_values(y, {0, 0.71484375, -0.263671875, -4.875, 28.375, -0.51953125, 93, -0.0311279297, 100, -0.0776367188}, 1e-10);
}

TEST_P(Vectors, SituGateMinimum) {
  const Tensor gate = f32({1, 3}, {-1.218F, -1.219F, -1.220F});
  const Tensor up = f32({1, 3}, {1, 1, 1});
  Tensor y = empty({1, 3});
  gated_activation(exact_, {Activation::Kind::situ, 4.0F, std::nullopt}, gate.view(), up.view(), y.mutable_view());
  EXPECT_NEAR(y.as<float>()[1], -0.269768988, kTolerance);
  EXPECT_GT(y.as<float>()[0], -0.26977F);
}

TEST_P(Vectors, SwiGlu) {
  // silu(1) * 3 = 3 sigma(1); the vector of the gate table's beta (KDA): sigma(1) = 0.731058579.
  const Tensor gate = f32({1, 1}, {1});
  const Tensor up = f32({1, 1}, {3});
  Tensor y = empty({1, 1});
  gated_activation(exact_, {Activation::Kind::silu, 1.0F, std::nullopt}, gate.view(), up.view(), y.mutable_view());
  expect_values(y, {3 * 0.731058579}, kTolerance);
}

TEST_P(Vectors, GateValues) {
  // Six heads of one channel. The input is split between z and dt_bias: their sum is what counts.
  const Tensor z = f32({1, 6}, {-1.5F, 0.5F, 0.5F, -0.75F, 1.5F, 0});
  const Tensor dt = f32({6}, {0.5F, -0.5F, 0.5F, -0.25F, -0.5F, 1});
  const float ln4 = std::log(4.0F);
  const Tensor a_log = f32({6}, {0, 0, 0, ln4, ln4, std::log(16.0F)});
  Tensor g = empty({1, 6});
  for (TestContext* context : {&exact_, &bf16_}) {  // float32 in both profiles (R6)
    kda_gate(*context, z.view(), a_log.view(), dt.view(), -5.0F, g.mutable_view());
    expect_values(g, {-1.344707107, -2.5, -3.655292893, -0.089931050, -4.910068950, -4.999999437}, kTolerance);
    kda_gate(*context, z.view(), a_log.view(), dt.view(), std::nullopt, g.mutable_view());
    expect_values(g, {-0.313261688, -0.693147181, -1.313261688, -1.253046750, -5.253046750, -21.012187000}, kTolerance);
  }
}

TEST_P(Vectors, ShortConvolution) {
  const Tensor x = f32({4, 1}, {1, 2, -1, 0.5F});
  const Tensor taps = f32({1, 4}, {0.1F, -0.2F, 0.3F, 0.5F});
  Tensor y = empty({4, 1});
  std::array<float, 3> state{};
  const StateSegment segment{0, 4, nullptr, state.data()};
  short_conv(exact_, x.view(), taps.view(), {&segment, 1}, y.mutable_view());
  expect_values(y, {0.311229666, 1.021585478, -0.047502081, -0.144683847}, kTolerance);
  EXPECT_EQ(state, (std::array<float, 3>{2, -1, 0.5F}));
}

TEST_P(Vectors, Kda) {
  const Tensor q = f32({2, 2}, {1, 2, 0.5F, -1});
  const Tensor k = f32({2, 2}, {3, 4, 1, -1});
  const Tensor v = f32({2, 2}, {1, -1, 0.5F, 2});
  const Tensor z = f32({2, 2}, {0.5F, -1, -2, 0.25F});
  const Tensor beta = f32({2, 1}, {0, 1});
  const Tensor a_log = f32({1}, {std::log(2.0F)});
  const Tensor dt = f32({2}, {0.1F, -0.2F});
  Tensor g = empty({2, 2});
  kda_gate(exact_, z.view(), a_log.view(), dt.view(), -5.0F, g.mutable_view());
  expect_values(g, {-3.842623917, -0.415863482, -0.109406355, -2.624895937}, kTolerance);

  std::array<float, 4> state = {0.5F, -0.25F, 0.125F, 1.0F};
  Tensor o = empty({2, 2});
  const auto run = [&](int64_t t) {
    const StateSegment segment{0, 1, state.data(), state.data()};
    delta_rule(exact_, {1, 1, 2, 2, true}, rows_of(q, t, t + 1), rows_of(k, t, t + 1), rows_of(v, t, t + 1),
               rows_of(g, t, t + 1), rows_of(beta, t, t + 1), {&segment, 1}, rows_of(o, t, t + 1));
  };
  run(0);
  const std::array<double, 4> after_first = {0.288996169, -0.462739510, 0.453507998, 0.049930081};
  // u is not an output. It shows in the state: row 0 is 0.010718639, -0.005359319 after the decay, plus k[0] u.
  EXPECT_NEAR((state[0] - 0.010718639) / 0.599999988, 0.463795892, kTolerance);
  EXPECT_NEAR((state[1] + 0.005359319) / 0.599999988, -0.762300333, kTolerance);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(state[i], after_first[i], kTolerance) << "state " << i;
  run(1);
  const std::array<double, 4> after_second = {0.434835171, 0.772026545, -0.142933374, -1.183193256};
  EXPECT_NEAR((state[0] - 0.259046369) / 0.707106604, 0.248602970, 2 * kTolerance);
  EXPECT_NEAR((state[1] + 0.414784010) / 0.707106604, 1.678404003, 2 * kTolerance);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(state[i], after_second[i], kTolerance) << "state " << i;
  expect_values(o, {0.378212217, -0.114752514, 0.227905867, 0.992452953}, kTolerance);

  const Tensor weight = f32({2}, {1.25F, 0.75F});
  const Tensor gate = f32({2, 2}, {0.3F, -0.7F, 0.3F, -0.7F});
  Tensor y = empty({2, 2});
  gated_rms_norm(exact_, o.view(), weight.view(), 1e-5F, gate.view(), y.mutable_view());
  expect_values(y, {0.971675565, -0.102175083, 0.227276033, 0.343008691}, kTolerance);
}

TEST_P(Vectors, AttentionResiduals) {
  const Tensor b0 = f32({1, 4}, {1, 0, -1, 2});
  const Tensor b1 = f32({1, 4}, {0.5F, 0.5F, 0.5F, -0.5F});
  const Tensor h = f32({1, 4}, {2, -1, 0, 1});
  const Tensor w = f32({4}, {0.5F, -0.5F, 0.5F, 0.5F});
  Tensor out = empty({1, 4});
  Tensor p = empty({1, 3});
  const std::array<TensorView, 3> sources = {b0.view(), b1.view(), h.view()};
  residual_mix(exact_, sources, w.view(), 1e-5F, out.mutable_view(), p.as<float>());
  expect_values(p, {0.269939655, 0.119307545, 0.610752799}, kTolerance);
  expect_values(out, {1.551099027, -0.551099027, -0.210285882, 1.090978337}, kTolerance);

  // One source: h itself, whatever it holds.
  residual_mix(bf16_, {&sources[2], 1}, w.view(), 1e-5F, out.mutable_view(), {});
  expect_same_bits(out.view(), h.view(), "one source");
}

TEST_P(Vectors, Router) {
  const Tensor logits = f32({1, 6}, {0.2F, -1, 1.5F, 0, 0.7F, -0.3F});
  const Tensor bias = f32({6}, {0, 0.5F, -0.3F, 0.1F, 0, 0.05F});
  Tensor ids = Tensor::zeros(DType::i32, {1, 2});
  Tensor weights = empty({1, 2});
  Tensor margin = empty({1});
  for (TestContext* context : {&exact_, &bf16_}) {  // float32 in both profiles (R10)
    route(*context, {2, true, 1.0F}, logits.view(), bias.view(), ids.mutable_view(), weights.mutable_view(),
          margin.as<float>());
    EXPECT_EQ(ids.as<int32_t>()[0], 1);
    EXPECT_EQ(ids.as<int32_t>()[1], 4);
    expect_values(weights, {0.286984359, 0.713015641}, kTolerance);
    expect_values(margin, {0.668187772 - 0.6}, kTolerance);
    route(*context, {2, true, 2.446F}, logits.view(), bias.view(), ids.mutable_view(), weights.mutable_view());
    expect_values(weights, {0.701963743, 1.744036257}, kTolerance);
  }
  route(exact_, {2, false, 1.0F}, logits.view(), bias.view(), ids.mutable_view(), weights.mutable_view());
  expect_values(weights, {0.268941421, 0.668187772}, kTolerance);
}

// K3 spec 3.7: experts are added in ascending index. (1e8 y - 1e8 y) + y = y in float32; any other order gives 0.
TEST_P(Vectors, MoeAddsExpertsInAscendingOrder) {
  Random random(9);
  const TestWeight first = random_weight(random, WeightFormat::bf16, 32, 32);
  const TestWeight second = random_weight(random, WeightFormat::bf16, 32, 32);
  const std::vector<ExpertView> experts(5, ExpertView{first.view(), second.view(), first.view()});
  const Tensor z = weft::ops::random(random, {2, 32});
  Tensor ids = Tensor::zeros(DType::i32, {2, 3});
  std::ranges::copy(std::array<int32_t, 6>{0, 2, 3, 1, 2, 4}, ids.as<int32_t>().begin());
  const Tensor weights = f32({2, 3}, {1e8F, -1e8F, 1, 1e8F, -1e8F, 1});
  Tensor out = empty({2, 32});
  moe(exact_, {Activation::Kind::situ, 4.0F, 25.0F}, z.view(), ids.view(), weights.view(), experts, out.mutable_view());
  Tensor one_id = Tensor::zeros(DType::i32, {2, 1});
  const Tensor one = f32({2, 1}, {1, 1});
  Tensor y = empty({2, 32});
  moe(exact_, {Activation::Kind::situ, 4.0F, 25.0F}, z.view(), one_id.view(), one.view(), experts, y.mutable_view());
  expect_same_bits(out.view(), y.view(), "sum");
}

TEST_P(Vectors, RmsNormRounding) {
  const Tensor x = f32({1, 4}, {1, 2, -3, 0.5F});
  const Tensor weight = f32({4}, {1.0078125F, 0.9921875F, 1.5F, 0.75F});
  Tensor y = empty({1, 4});
  rms_norm(exact_, x.view(), weight.view(), 1e-5F, y.mutable_view());
  const double factor = 0.529812199;
  expect_values(y, {factor * 1.0078125, factor * 2 * 0.9921875, factor * -3 * 1.5, factor * 0.5 * 0.75}, kTolerance);
  rms_norm(bf16_, x.view(), weight.view(), 1e-5F, y.mutable_view());
  expect_values(y, {0.53515625, 1.0546875, -2.375, 0.19921875}, 0.0);
  // One rounding: the norm of KDA's output (R7), with a gate so far up that its sigmoid is 1.
  const Tensor gate = f32({1, 4}, {100, 100, 100, 100});
  gated_rms_norm(bf16_, x.view(), weight.view(), 1e-5F, gate.view(), y.mutable_view());
  expect_values(y, {0.53515625, 1.0546875, -2.390625, 0.1982421875}, 0.0);
}

TEST_P(Vectors, NormActsOnTheSumOverRanks) {
  const Tensor a = f32({1, 2}, {1, -2});
  const Tensor b = f32({1, 2}, {0.5F, 3});
  const Tensor weight = f32({2}, {1, 1});
  Tensor sum = empty({1, 2});
  Tensor y = empty({1, 2});
  add(exact_, a.view(), b.view(), sum.mutable_view());
  rms_norm(exact_, sum.view(), weight.view(), 1e-5F, y.mutable_view());
  expect_values(y, {1.176693190, 0.784462127}, kTolerance);
}

TEST_P(Vectors, L2NormEpsilonIsAddedToTheSum) {
  // From S = 0 with beta = 1 and no decay the first token leaves S = k v^T, so v = 1 shows k.
  for (const auto& [magnitude, wanted] : {std::pair{0.01F, 0.08838489518}, std::pair{0.001F, 0.08804509063}}) {
    Tensor k = empty({1, 128});
    for (float& value : k.as<float>()) value = magnitude;
    Tensor ones = empty({1, 128});
    for (float& value : ones.as<float>()) value = 1.0F;
    const Tensor g = empty({1, 128});
    const Tensor beta = f32({1, 1}, {100});
    Tensor state = empty({128, 128});
    Tensor o = empty({1, 128});
    const StateSegment segment{0, 1, nullptr, state.as<float>().data()};
    for (TestContext* context : {&exact_, &bf16_}) {  // not rounded in either profile (ruling R4)
      delta_rule(*context, {1, 1, 128, 128, true}, k.view(), k.view(), ones.view(), g.view(), beta.view(), {&segment, 1},
                 o.mutable_view());
      EXPECT_NEAR(state.as<float>()[0], wanted, 1e-8);
      EXPECT_NEAR(state.as<float>()[128 * 128 - 1], wanted, 1e-8);
    }
  }
}

TEST_P(Vectors, GatherRows) {
  const Tensor x = f32({3, 2}, {1, 2, 3, 4, 5, 6});
  const std::array<int64_t, 4> rows = {2, 0, 2, 1};
  Tensor out = empty({4, 2});
  gather_rows(exact_, x.view(), rows, out.mutable_view());
  expect_values(out, {5, 6, 1, 2, 5, 6, 3, 4}, 0.0);
}

TEST_P(Vectors, SigmoidGateRoundsTwice) {
  // sigma(1) = 0.731058579 -> bf16 0.73046875; times 1.0078125 = 0.736175537 -> 0.734375 (one rounding would give 0.73828125).
  const Tensor x = f32({1, 1}, {1.0078125F});
  const Tensor gate = f32({1, 1}, {1});
  Tensor y = empty({1, 1});
  sigmoid_gate(bf16_, x.view(), gate.view(), y.mutable_view());
  expect_values(y, {0.734375}, 0.0);
  sigmoid_gate(exact_, x.view(), gate.view(), y.mutable_view());
  expect_values(y, {0.731058579 * 1.0078125}, kTolerance);
}

}  // namespace
}  // namespace weft::ops
