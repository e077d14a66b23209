// The worked examples of the Qwen3-Next spec (sections 2.2, 3.5, 3.6, 9), on every back end. Tolerance 1e-6 relative to max(1,
// |value|): the examples are float64 results and the operators compute in float32.
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/ops_test_util.h"
#include "ops/rotary_table.h"

namespace weft::ops {
namespace {

constexpr double kTolerance = 1e-6;

class QwenVectors : public testing::TestWithParam<Backend> {
 protected:
  TestContext exact_{GetParam()};
  TestContext bf16_{GetParam(), Profile::bf16};
};

INSTANTIATE_TEST_SUITE_P(Backends, QwenVectors, testing::Values(Backend::reference, Backend::cpu),
                         [](const auto& each) { return std::string(to_string(each.param)); });

Tensor indices(int64_t count) {
  Tensor tensor = empty({1, count});
  std::iota(tensor.as<float>().begin(), tensor.as<float>().end(), 0.0F);
  return tensor;
}

// 2.2: rows of in_proj_qkvz and in_proj_ba.
TEST_P(QwenVectors, InterleavedProjections) {
  const Tensor qkvz = indices(12288);
  Tensor q = empty({1, 2048});
  Tensor k = empty({1, 2048});
  Tensor v = empty({1, 4096});
  Tensor z = empty({1, 4096});
  const std::array<MutableTensorView, 4> parts = {q.mutable_view(), k.mutable_view(), v.mutable_view(), z.mutable_view()};
  split_groups(exact_, qkvz.view(), std::array<int64_t, 4>{128, 128, 256, 256}, parts);
  const auto at = [](const Tensor& part, int64_t head, int64_t d) {
    return part.as<float>()[static_cast<size_t>(head * 128 + d)];
  };
  EXPECT_EQ(at(q, 0, 0), 0);
  EXPECT_EQ(at(k, 0, 0), 128);
  EXPECT_EQ(at(v, 0, 0), 256);
  EXPECT_EQ(at(v, 1, 0), 384);
  EXPECT_EQ(at(z, 0, 0), 512);
  EXPECT_EQ(at(z, 1, 0), 640);
  EXPECT_EQ(at(q, 1, 0), 768);
  EXPECT_EQ(at(q, 3, 5), 2309);
  EXPECT_EQ(at(k, 3, 5), 2437);
  EXPECT_EQ(at(v, 7, 5), 2693);
  EXPECT_EQ(at(z, 7, 5), 2949);
  EXPECT_EQ(at(z, 31, 127), 12287);

  const Tensor ba = indices(64);
  Tensor b = empty({1, 32});
  Tensor a = empty({1, 32});
  split_groups(exact_, ba.view(), std::array<int64_t, 2>{2, 2}, std::array{b.mutable_view(), a.mutable_view()});
  for (const auto& [head, b_row, a_row] : {std::array{0, 0, 2}, {1, 1, 3}, {2, 4, 6}, {3, 5, 7}, {31, 61, 63}}) {
    EXPECT_EQ(b.as<float>()[static_cast<size_t>(head)], static_cast<float>(b_row));
    EXPECT_EQ(a.as<float>()[static_cast<size_t>(head)], static_cast<float>(a_row));
  }
}

// 9.1: two steps of one head.
TEST_P(QwenVectors, DeltaRule) {
  const Tensor q = f32({2, 2}, {3, 4, -1, 2});
  const Tensor k = f32({2, 2}, {1, -1, 2, 1});
  const Tensor v = f32({2, 2}, {0.5F, 2, -1, 0.25F});
  const Tensor a = f32({2, 1}, {-0.25F, 0.75F});
  const Tensor b = f32({2, 1}, {0.4F, -0.3F});
  Tensor g = empty({2, 1});
  kda_gate(exact_, a.view(), f32({1}, {std::log(2.0F)}).view(), f32({1}, {0.5F}).view(), std::nullopt, g.mutable_view());
  expect_values(g, {-1.651878839758, -3.003858162691}, kTolerance);

  const DeltaShape shape{1, 1, 2, 2, false};
  const auto expect_state = [](const std::array<float, 4>& found, const std::array<double, 4>& wanted) {
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], wanted[i], kTolerance) << "state " << i;
  };
  const std::array<double, 4> first = {0.374666907904, 0.789290981500, -0.087132783339, -0.980980397876};
  const std::array<double, 4> second = {-0.367638887407, 0.129257588182, -0.197431693308, -0.003595855846};
  std::array<float, 4> state = {1, 0, 0.5F, -1};
  Tensor o = empty({2, 2});
  for (int64_t t = 0; t < 2; ++t) {
    const StateSegment segment{0, 1, state.data(), state.data()};
    delta_rule(exact_, shape, rows_of(q, t, t + 1), rows_of(k, t, t + 1), rows_of(v, t, t + 1), rows_of(g, t, t + 1),
               rows_of(b, t, t + 1), {&segment, 1}, rows_of(o, t, t + 1));
    expect_state(state, t == 0 ? first : second);
  }
  expect_values(o, {0.109667958995, -0.220058505630, -0.008609141705, -0.043149052959}, kTolerance);

  // As two value heads on one key head, in one call: the second has a state and values of its own.
  const Tensor v2 = f32({2, 4}, {0.5F, 2, 1, 4, -1, 0.25F, -2, 0.5F});
  const Tensor g2 = f32({2, 2}, {g.as<float>()[0], g.as<float>()[0], g.as<float>()[1], g.as<float>()[1]});
  const Tensor b2 = f32({2, 2}, {0.4F, 0.4F, -0.3F, -0.3F});
  std::array<float, 8> states = {1, 0, 0.5F, -1, 2, 0, 1, -2};
  Tensor o2 = empty({2, 4});
  const StateSegment both{0, 2, states.data(), states.data()};
  delta_rule(exact_, {1, 2, 2, 2, false}, q.view(), k.view(), v2.view(), g2.view(), b2.view(), {&both, 1}, o2.mutable_view());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(states[i], second[i], kTolerance);
    EXPECT_NEAR(states[4 + i], 2 * second[i], 2 * kTolerance) << "all is linear in values and state";
  }
  expect_values(o2,
                {0.109667958995, -0.220058505630, 0.219335917990, -0.440117011260, -0.008609141705, -0.043149052959,
                 -0.017218283410, -0.086298105918},
                kTolerance);
}

// 9.2, with the weights after 1 + w.
TEST_P(QwenVectors, Norms) {
  const Tensor x = f32({1, 4}, {1, -2, 3, 0.5F});
  const Tensor weight = f32({4}, {1 + 0.1F, 1 - 0.25F, 1, 1 + 1.5F});
  Tensor y = empty({1, 4});
  rms_norm(exact_, x.view(), weight.view(), 1e-6F, y.mutable_view(), NormRounding::once);
  expect_values(y, {0.582794155313, -0.794719302699, 1.589438605399, 0.662266085583}, kTolerance);
  rms_norm(bf16_, x.view(), weight.view(), 1e-6F, y.mutable_view(), NormRounding::once);
  expect_values(y, {0.58203125, -0.79296875, 1.5859375, 0.6640625}, 0.0);

  const Tensor plain = f32({4}, {0.9F, 1.1F, 1, 0.5F});
  const Tensor z = f32({1, 4}, {0, 1, -1, 2});
  gated_rms_norm(exact_, x.view(), plain.view(), 1e-6F, z.view(), y.mutable_view(), NormGate::silu);
  expect_values(y, {0, -0.852113333634, -0.427465877716, 0.233328813210}, kTolerance);
  gated_rms_norm(bf16_, x.view(), plain.view(), 1e-6F, z.view(), y.mutable_view(), NormGate::silu);
  expect_values(y, {0, -0.8515625, -0.427734375, 0.2333984375}, 0.0);  // the above, rounded once
}

// 9.3 and 3.5.
TEST_P(QwenVectors, Rotation) {
  const std::array<float, 2> frequencies = {1, 3.16227766e-4F};
  Tensor table = empty({1, 4});
  rotary_table(std::array<int64_t, 1>{3}, frequencies, 1.0F, table.as<float>());
  const Tensor x = f32({1, 8}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor y = empty({1, 8});
  rotate(exact_, {1, 8}, 4, x.view(), table.view(), y.mutable_view());
  expect_values(y, {-1.413352520780, 1.996204367377, -2.828857481741, 4.001895566312, 5, 6, 7, 8}, kTolerance);
  Tensor same = x;
  rotate(exact_, {1, 8}, 4, same.view(), table.view(), same.mutable_view());
  expect_same_bits(same.view(), y.view(), "in place");
  rotate(bf16_, {1, 8}, 4, x.view(), table.view(), y.mutable_view());
  expect_values(y, {-1.4140625, 2, -2.828125, 4, 5, 6, 7, 8}, 0.0);               // rounded once
  rotary_table(std::array<int64_t, 1>{3}, frequencies, 2.0F, table.as<float>());  // an attention factor
  rotate(exact_, {1, 8}, 4, x.view(), table.view(), y.mutable_view());
  expect_values(y, {-2.826705041560, 3.992408734754, -5.657714963482, 8.003791132624, 5, 6, 7, 8}, kTolerance);
}

TEST(RotaryTable, OfTheRealModel) {
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / 64.0)));
  EXPECT_NEAR(frequencies[1], 0.604296390, 1e-9 + 3e-8);
  EXPECT_NEAR(frequencies[31], 1.65481710e-7, 1e-14);
  std::vector<float> table(2 * 64);
  rotary_table(std::array<int64_t, 2>{0, 1000}, frequencies, 1.0F, table);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(table[i], 1.0F);
    EXPECT_EQ(table[32 + i], 0.0F);
  }
  const float* cosines = table.data() + 64;
  const float* sines = cosines + 32;
  EXPECT_NEAR(cosines[0], 0.562379076291, 3e-8);
  EXPECT_NEAR(sines[0], 0.826879540532, 3e-8);
  // The angle 604.29 is a float32: half a step of it is 3e-5.
  EXPECT_NEAR(cosines[1], 0.444123346542, 5e-5);
  EXPECT_NEAR(sines[1], 0.895965653949, 5e-5);
  EXPECT_EQ(cosines[1], static_cast<float>(std::cos(static_cast<double>(1000.0F * frequencies[1]))));
  EXPECT_NEAR(cosines[31], 0.999999986308, 3e-8);
  EXPECT_NEAR(sines[31], 1.654817092e-4, 1e-11);
  try {
    rotary_table(std::array<int64_t, 1>{0}, frequencies, 1.0F, table);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[rotary_table] table: wanted 64 values, found 128");
  }
}

// 9.4.
TEST_P(QwenVectors, ConvolutionGateAndRouter) {
  std::array<float, 3> state = {1, -1, 0.5F};
  const StateSegment segment{0, 1, state.data(), state.data()};
  Tensor y = empty({1, 1});
  short_conv(exact_, f32({1, 1}, {2}).view(), f32({1, 4}, {0.1F, 0.2F, -0.3F, 0.5F}).view(), {&segment, 1}, y.mutable_view());
  expect_values(y, {0.509384024382}, kTolerance);
  EXPECT_EQ(state, (std::array<float, 3>{-1, 0.5F, 2}));

  sigmoid_gate(exact_, f32({1, 1}, {1.5F}).view(), f32({1, 1}, {0.7F}).view(), y.mutable_view());
  expect_values(y, {1.002281658252}, kTolerance);
  Tensor rows = empty({2, 3});  // one gate for each row
  sigmoid_gate(exact_, f32({2, 3}, {1.5F, 3, -1.5F, 1, 2, 4}).view(), f32({2, 1}, {0.7F, 0}).view(), rows.mutable_view());
  expect_values(rows, {1.002281658252, 2.004563316504, -1.002281658252, 0.5, 1, 2}, kTolerance);

  const Tensor logits = f32({1, 4}, {2, 0.5F, 1, -1});
  Tensor ids = Tensor::zeros(DType::i32, {1, 2});
  Tensor weights = empty({1, 2});
  Tensor margin = empty({1});
  RouterRule rule{2, true, 1.0F, RouterRule::Score::softmax};
  for (TestContext* context : {&exact_, &bf16_}) {  // float32 in both profiles
    route(*context, rule, logits.view(), {}, ids.mutable_view(), weights.mutable_view(), margin.as<float>());
    EXPECT_EQ(ids.as<int32_t>()[0], 0);
    EXPECT_EQ(ids.as<int32_t>()[1], 2);
    expect_values(weights, {0.731058578630, 0.268941421370}, kTolerance);
    expect_values(margin, {0.5}, 0.0);  // of the logits
  }
  rule.renormalize = false;
  route(exact_, rule, logits.view(), {}, ids.mutable_view(), weights.mutable_view());
  expect_values(weights, {0.609460037599, 0.224207818048}, kTolerance);
  // One expert alone weighs 1, and ties go to the lower index.
  Tensor id = Tensor::zeros(DType::i32, {1, 1});
  Tensor weight = empty({1, 1});
  route(exact_, {1, true, 1.0F, RouterRule::Score::softmax}, f32({1, 4}, {0, 3, 1, 3}).view(), {}, id.mutable_view(),
        weight.mutable_view());
  EXPECT_EQ(id.as<int32_t>()[0], 1);
  expect_values(weight, {1}, 0.0);
}

// A row attends to no position behind its own, whatever lies there.
TEST_P(QwenVectors, AttentionIsCausal) {
  const GqaShape shape{4, 2, 8};
  const int64_t rows = 12;
  Random numbers(5);
  const Tensor q = random(numbers, {rows, 32}, 3.0);
  const Tensor k = random(numbers, {rows, 16});
  const Tensor v = random(numbers, {rows, 16});
  Tensor page = empty({kPageTokens, 32});
  const std::array<float*, 1> pages = {page.as<float>().data()};
  const PagedSegment segment{0, rows, 0, pages};
  Tensor wanted = empty({rows, 32});
  gqa_append(exact_, shape, k.view(), v.view(), {&segment, 1});
  gqa_attention(exact_, shape, q.view(), {&segment, 1}, wanted.mutable_view());
  for (int64_t c = 0; c < 32; ++c) page.as<float>()[static_cast<size_t>(7 * 32 + c)] = std::nanf("");
  Tensor found = empty({rows, 32});
  gqa_attention(exact_, shape, q.view(), {&segment, 1}, found.mutable_view());
  expect_same_bits(rows_of(found, 0, 7), rows_of(wanted, 0, 7), "rows before");
  for (const float value : rows_of(found, 7, rows).as<float>()) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace weft::ops
