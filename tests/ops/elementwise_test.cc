// The vector functions under every dispatch target: accuracy, the edges of float32, and results that do not depend on an
// element's place.
#include "ops/cpu/elementwise.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/math.h"
#include "ops/ops_test_util.h"
#include "ops/targets_test_util.h"

namespace weft::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSubnormal = std::numeric_limits<float>::denorm_min();
const Activation kSitu{Activation::Kind::situ, 4.0F, 25.0F};
const Activation kSituUnbounded{Activation::Kind::situ, 4.0F, std::nullopt};
const Activation kSilu{Activation::Kind::silu, 1.0F, std::nullopt};

class Elementwise : public testing::TestWithParam<int64_t> {
 protected:
  UseTarget use_{GetParam()};
  Random random_{21};
};

INSTANTIATE_TEST_SUITE_P(Targets, Elementwise, testing::ValuesIn(dispatch_targets()),
                         [](const auto& each) { return std::string(hwy::TargetName(each.param)); });

// |found - wanted| in units of the last place of `wanted` as float32.
double ulps(float found, double wanted) {
  const auto near = static_cast<float>(wanted);
  if (std::isinf(near)) return found == near ? 0.0 : INFINITY;
  const double step = std::nextafter(std::fabs(near), kInfinity) - static_cast<double>(std::fabs(near));
  return std::fabs(found - wanted) / step;
}

TEST_P(Elementwise, ExponentialsAreWithinTwoUlps) {
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) x.push_back(static_cast<float>(random_.uniform(-106.0, 89.5)));
  for (int i = 0; i < 20000; ++i) x.push_back(static_cast<float>(random_.uniform(-1e-3, 1e-3)));
  std::vector<float> y(x.size());
  cpu::exponentials(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
}

TEST_P(Elementwise, SigmoidsAreWithinThreeUlps) {
  std::vector<float> x;
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<float>(random_.uniform(-106.0, 106.0)));
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<float>(random_.uniform(-6.0, 6.0)));
  std::vector<float> y(x.size());
  cpu::sigmoids(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulps(y[i], 1.0 / (1.0 + std::exp(-static_cast<double>(x[i])))));
  }
  EXPECT_LE(worst, 3.0);
}

TEST_P(Elementwise, Edges) {
  const std::array<float, 10> x = {kInfinity, -kInfinity, 0, -0.0F, kLargest, -kLargest, 89, -105, kSubnormal, kNan};
  std::array<float, 10> y{};
  cpu::exponentials(x.data(), 10, y.data());
  EXPECT_TRUE(std::isnan(y[9]));
  y[9] = 0;
  EXPECT_EQ(y, (std::array<float, 10>{kInfinity, 0, 1, 1, kInfinity, 0, kInfinity, 0, 1, 0}));
  cpu::sigmoids(x.data(), 10, y.data());
  EXPECT_TRUE(std::isnan(y[9]));
  y[9] = 0;
  EXPECT_GT(y[7], -1.0F);
  y[7] = 0;  // e^-105 is 0 or the smallest float32
  EXPECT_EQ(y, (std::array<float, 10>{1, 0, 0.5F, 0.5F, 1, 0, 1, 0, 0.5F, 0}));
}

// NaN and infinity where the scalar function has them and nowhere else; small results keep their relative precision.
TEST_P(Elementwise, ActivationsFollowTheReferenceToTheEdges) {
  std::vector<float> values = {kNan};
  for (const float value : {0.0F, 1e-40F, kSubnormal, 1e-30F, 1e-8F, 1e-3F, 0.3F, 1.0F, 8.0F, 40.0F, 90.0F, 110.0F, 1e4F, 1e30F,
                            kLargest, kInfinity}) {
    values.push_back(value);
    values.push_back(-value);
  }
  for (const Activation& activation : {kSitu, kSituUnbounded, kSilu}) {
    for (const float gate : values) {
      for (const float up : values) {
        float found = 0.0F;
        cpu::activate(activation, &gate, &up, 1, false, &found);
        const float wanted = activate(activation, gate, up);
        if (std::isnan(wanted)) {
          EXPECT_TRUE(std::isnan(found)) << gate << ", " << up << ": " << found;
        } else if (std::isinf(wanted) || wanted == 0.0F) {
          EXPECT_NEAR(found == wanted ? 0.0F : found, 0.0F, 1e-44F) << gate << ", " << up << ": wanted " << wanted;
        } else {
          EXPECT_NEAR(found, wanted, 1e-6 * std::fabs(wanted) + 1e-44) << gate << ", " << up;
        }
      }
    }
  }
}

// Every element of any part of a vector has the bits that it has alone.
TEST_P(Elementwise, AnElementDoesNotDependOnItsPlace) {
  constexpr int64_t kCount = 70;
  const Tensor x = random(random_, {kCount}, 12.0);
  const Tensor up = random(random_, {kCount}, 12.0);
  const auto check = [&](const char* what, const auto& function) {
    std::array<float, kCount> alone{};
    for (int64_t i = 0; i < kCount; ++i) function(i, 1, alone.data() + i);
    for (int64_t begin = 0; begin < 20; ++begin) {
      for (int64_t end = begin + 1; end <= kCount; ++end) {
        std::array<float, kCount> together{};
        function(begin, end - begin, together.data() + begin);
        ASSERT_EQ(std::memcmp(together.data() + begin, alone.data() + begin, static_cast<size_t>(end - begin) * 4), 0)
            << what << " of [" << begin << ", " << end << ")";
      }
    }
  };
  const float* xs = x.as<float>().data();
  const float* ups = up.as<float>().data();
  check("exponentials", [&](int64_t i, int64_t count, float* y) { cpu::exponentials(xs + i, count, y); });
  check("sigmoids", [&](int64_t i, int64_t count, float* y) { cpu::sigmoids(xs + i, count, y); });
  for (const bool rounds : {false, true}) {
    for (const Activation& activation : {kSitu, kSituUnbounded, kSilu}) {
      check("activate",
            [&](int64_t i, int64_t count, float* y) { cpu::activate(activation, xs + i, ups + i, count, rounds, y); });
    }
  }
}

TEST_P(Elementwise, ActivationsRoundToBf16LikeTheScalarRounding) {
  const Activation identity{Activation::Kind::silu, 1.0F, std::nullopt};
  // silu(200) = 200, so that up * 200 shows the rounding: ties, carries into the exponent, infinities.
  for (const float up : {1.0F, 1.00390625F, 1.01171875F, 1.99609375F, -1.00390625F, 1.7e36F, kInfinity, 1e-40F}) {
    const float gate = 200.0F;
    float exact = 0.0F;
    float rounded = 0.0F;
    cpu::activate(identity, &gate, &up, 1, false, &exact);
    cpu::activate(identity, &gate, &up, 1, true, &rounded);
    EXPECT_EQ(rounded, round_bf16(exact)) << up;
  }
}

// The block softmax: largest 1, sum of the values, scores of minus infinity count nothing.
TEST_P(Elementwise, BlockSoftmax) {
  for (const size_t count : {1, 2, 15, 16, 17, 33, 63, 100, 256}) {
    std::vector<float> scores(count);
    for (float& score : scores) score = static_cast<float>(random_.uniform(-30.0, 30.0));
    if (count > 2) scores[1] = -kInfinity;
    std::vector<float> wanted = scores;
    for (float& score : wanted) score *= 0.5F;
    const RunningSoftmax reference = exponentiate(wanted);
    const RunningSoftmax found = cpu::exponentiate(scores, 0.5F);
    EXPECT_EQ(found.max, reference.max);
    EXPECT_NEAR(found.sum, reference.sum, 1e-6 * reference.sum);
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(scores[i], wanted[i], 1e-6 * wanted[i] + 1e-44) << i;
  }
}

}  // namespace
}  // namespace weft::ops
