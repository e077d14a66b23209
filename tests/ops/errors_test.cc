// A mismatch is an internal error that names the operator, the operand, what was wanted and what was found.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/ops_test_util.h"

namespace weft::ops {
namespace {

using testing::HasSubstr;

void expect_error(const std::function<void()>& call, const std::string& wanted, ErrorKind kind = ErrorKind::internal) {
  try {
    call();
    ADD_FAILURE() << "no error; wanted " << wanted;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(error.what(), HasSubstr(wanted));
  }
}

class Errors : public testing::Test {
 protected:
  TestContext context_{Backend::cpu};
  Random random_{1};
  Tensor a_ = empty({2, 32});
  Tensor b_ = empty({2, 31});
  Tensor y_ = empty({2, 32});
  Tensor v31_ = empty({31});
  Tensor v32_ = empty({32});
};

TEST_F(Errors, ShapesAndTypes) {
  const TestWeight weight = random_weight(random_, WeightFormat::bf16, 32, 31);
  expect_error([&] { linear(context_, a_.view(), weight.view(), y_.mutable_view()); },
               "[linear] x: wanted F32 [2, 31], found F32 [2, 32]");
  expect_error([&] { linear(context_, b_.view(), weight.view(), b_.mutable_view()); },
               "[linear] y: wanted F32 [2, 32], found F32 [2, 31]");
  expect_error([&] { rms_norm(context_, a_.view(), v31_.view(), 1e-5F, y_.mutable_view()); },
               "[rms_norm] x: wanted F32 [2, 31]");
  expect_error([&] { add(context_, a_.view(), b_.view(), y_.mutable_view()); },
               "[add] b: wanted F32 [2, 32], found F32 [2, 31]");
  expect_error([&] { sigmoid_gate(context_, a_.view(), b_.view(), y_.mutable_view()); }, "[sigmoid_gate] gate");
  expect_error([&] { gated_activation(context_, {}, a_.view(), b_.view(), y_.mutable_view()); }, "[gated_activation] up");
  expect_error([&] { residual_mix(context_, {}, v32_.view(), 1e-5F, y_.mutable_view()); },
               "[residual_mix] wanted at least one source");
  expect_error([&] { kda_gate(context_, a_.view(), empty({3}).view(), v32_.view(), -5.0F, y_.mutable_view()); },
               "[kda_gate] dt_bias: wanted whole heads of 3, found [32]");
  expect_error([&] { gated_rms_norm(context_, a_.view(), v31_.view(), 1e-5F, a_.view(), y_.mutable_view()); },
               "[gated_rms_norm] o: wanted whole heads of size 31, found [2, 32]");
  expect_error([&] { rotate(context_, {2, 16}, 5, a_.view(), a_.view(), y_.mutable_view()); },
               "[rotate] wanted heads and an even number of their channels, found 2 of 16 and 5");
  expect_error([&] { rotate(context_, {2, 16}, 8, a_.view(), a_.view(), y_.mutable_view()); },
               "[rotate] table: wanted F32 [2, 8], found F32 [2, 32]");
  const std::array<MutableTensorView, 1> part = {y_.mutable_view()};
  expect_error([&] { split_groups(context_, a_.view(), std::array<int64_t, 2>{1, 2}, part); },
               "[split_groups] wanted 1 to 4 widths and as many parts, found 2 and 1");
  expect_error([&] { split_groups(context_, a_.view(), std::array<int64_t, 1>{5}, part); },
               "[split_groups] x: wanted whole groups of 5, found [2, 32]");
  expect_error([&] { split_groups(context_, a_.view(), std::array<int64_t, 1>{0}, part); }, "wanted positive ones, found 0");
  expect_error(
      [&] { delta_rule(context_, {2, 3, 4, 4, false}, {}, {}, {}, {}, {}, {}, {}); },
      "[delta_rule] wanted positive sizes and whole groups of value heads, found 2 key heads of 4 and 3 value heads of 4");
  expect_error([&] { gqa_attention(context_, {3, 2, 4}, a_.view(), {}, y_.mutable_view()); },
               "[gqa_attention] wanted positive sizes and whole groups of heads, found heads 3, kv heads 2, size 4");
  const Tensor ints = Tensor::zeros(DType::i32, {2, 32});
  expect_error([&] { add(context_, a_.view(), ints.view(), y_.mutable_view()); },
               "[add] b: wanted F32 [2, 32], found I32 [2, 32]");
  Context bare;
  expect_error([&] { add(bare, a_.view(), a_.view(), y_.mutable_view()); }, "[add] wanted a context with a worker pool");
}

TEST_F(Errors, Weights) {
  WeightView weight = random_weight(random_, WeightFormat::mxfp4, 32, 32).shape;
  expect_error([&] { linear(context_, a_.view(), weight, y_.mutable_view()); }, "[linear] weight: wanted memory, found null");
  weight.data = a_.view().data;
  expect_error([&] { linear(context_, a_.view(), weight, y_.mutable_view()); }, "[linear] weight: wanted scales, found null");
  weight.in = 31;
  expect_error([&] { linear(context_, b_.view(), weight, y_.mutable_view()); }, "wanted whole groups of 32, found in = 31");

  WeightView affine = random_weight(random_, suite::WeightForm::affine(4, 32), 32, 32).shape;
  const auto run = [&] { linear(context_, a_.view(), affine, y_.mutable_view()); };
  affine.data = a_.view().data;
  expect_error(run, "[linear] weight: wanted scales, found null");
  affine.scales = a_.view().data;
  expect_error(run, "[linear] weight: wanted biases, found null");
  affine.biases = a_.view().data;
  affine.group = 64;
  expect_error(run, "[linear] weight: wanted whole groups of 64, found in = 32");
  affine.bits = 7;
  expect_error(run, "wanted 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, found 7 bits, groups of 64");
  WeightView fp8 = suite::WeightForm::fp8(ScaleType::bf16, 128).shape(32, 32);
  fp8.data = a_.view().data;
  expect_error([&] { linear(context_, a_.view(), fp8, y_.mutable_view()); },
               "[linear] weight: wanted a first row in [0, 128) of its block, found 128");
}

TEST_F(Errors, Indices) {
  const TestWeight table = random_weight(random_, WeightFormat::bf16, 5, 32);
  const std::array<int32_t, 2> ids = {0, 5};
  expect_error([&] { embed(context_, ids, table.view(), y_.mutable_view()); },
               "[embed] row 1: wanted an id in [0, 5), found 5");
  const std::array<int64_t, 2> rows = {-1, 0};
  expect_error([&] { gather_rows(context_, a_.view(), rows, y_.mutable_view()); },
               "[gather_rows] rows[0]: wanted an index in [0, 2), found -1");

  const TestWeight part = random_weight(random_, WeightFormat::bf16, 32, 32);
  const TestWeight other = random_weight(random_, WeightFormat::bf16, 16, 32);
  const std::vector<ExpertView> experts = {{part.view(), part.view(), part.view()},
                                           {part.view(), part.view(), part.view()},
                                           {part.view(), part.view(), other.view()}};
  Tensor chosen = Tensor::zeros(DType::i32, {2, 2});
  const Tensor weights = empty({2, 2});
  const auto run = [&](std::initializer_list<int32_t> values) {
    std::copy(values.begin(), values.end(), chosen.as<int32_t>().begin());
    moe(context_, {}, a_.view(), chosen.view(), weights.view(), experts, y_.mutable_view());
  };
  expect_error([&] { run({0, 3, 0, 1}); }, "[moe] row 0: wanted an expert in [0, 3), found 3");
  expect_error([&] { run({1, 0, 0, 1}); }, "[moe] row 0: wanted ascending experts, found 0 after 1");
  expect_error([&] { run({0, 1, 0, 2}); }, "[moe] expert 2 w3: wanted [32, 32], found [16, 32]");

  Tensor logits = empty({2, 4});
  logits.as<float>()[5] = std::nanf("");
  Tensor picked = Tensor::zeros(DType::i32, {2, 2});
  Tensor picked_weights = empty({2, 2});
  expect_error(
      [&] {
        route(context_, {2, true, 1.0F}, logits.view(), empty({4}).view(), picked.mutable_view(),
              picked_weights.mutable_view());
      },
      "[route] row 1, expert 1: wanted a number", ErrorKind::bad_checkpoint);
  expect_error(
      [&] {
        route(context_, {5, true, 1.0F}, logits.view(), empty({4}).view(), picked.mutable_view(),
              picked_weights.mutable_view());
      },
      "[route] wanted experts per token in [1, 4], found 5");
}

TEST_F(Errors, RouterBySoftmax) {
  const RouterRule rule{2, true, 1.0F, RouterRule::Score::softmax};
  Tensor logits = f32({2, 3}, {1, 2, 3, 1, INFINITY, 3});
  Tensor ids = Tensor::zeros(DType::i32, {2, 2});
  Tensor weights = empty({2, 2});
  expect_error([&] { route(context_, rule, logits.view(), {}, ids.mutable_view(), weights.mutable_view()); },
               "[route] row 1, expert 1: wanted a number, found logit inf", ErrorKind::bad_checkpoint);
  expect_error([&] { route(context_, rule, logits.view(), empty({3}).view(), ids.mutable_view(), weights.mutable_view()); },
               "[route] bias: wanted none beside a softmax, found [3]");
}

TEST_F(Errors, Segments) {
  const Tensor taps = empty({32, 4});
  Tensor state = empty({3, 32});
  float* out = state.as<float>().data();
  const auto run = [&](std::vector<StateSegment> segments) {
    short_conv(context_, a_.view(), taps.view(), segments, y_.mutable_view());
  };
  expect_error([&] { run({{0, 1, nullptr, out}}); },
               "[short_conv] segments: wanted every row of [0, 2) once, found none for row 1");
  expect_error([&] { run({{0, 2, nullptr, out}, {1, 1, nullptr, out}}); }, "found a break at row 1");
  expect_error([&] { run({{0, 3, nullptr, out}}); }, "segment of rows [0, +3): wanted a part of [0, 2)");
  expect_error([&] { run({{0, 2, nullptr, nullptr}}); }, "wanted memory for the new state");
  run({{1, 1, nullptr, out}, {0, 1, nullptr, out}});  // rows in any order

  const MlaShape shape{1, 2, 1, 2, 32};
  const std::array<float*, 1> pages = {out};
  const PagedSegment beyond{0, 2, 63, pages};
  expect_error([&] { mla_append(context_, shape, a_.view(), empty({2, 1}).view(), {&beyond, 1}); },
               "[mla_append] segment at row 0: wanted pages for positions [63, +2), found 1 pages of 64");
}

TEST_F(Errors, CallsWithoutRowsDoNothing) {
  const TestWeight weight = random_weight(random_, WeightFormat::bf16, 32, 32);
  Tensor none = empty({0, 32});
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    TestContext context{backend};
    linear(context, none.view(), weight.view(), none.mutable_view());
    rms_norm(context, none.view(), v32_.view(), 1e-5F, none.mutable_view());
    const Tensor ids = Tensor::zeros(DType::i32, {0, 2});
    moe(context, {}, none.view(), ids.view(), empty({0, 2}).view(), {}, none.mutable_view());
    short_conv(context, none.view(), empty({32, 4}).view(), {}, none.mutable_view());
  }
}

}  // namespace
}  // namespace weft::ops
