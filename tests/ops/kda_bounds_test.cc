// C9 (ggml-org/llama.cpp#23606): logits became NaN near 80 K tokens. The state of KDA stays bounded over 100 K steps.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/ops_test_util.h"

namespace weft::ops {
namespace {

constexpr int64_t kSize = 16;
constexpr int64_t kSteps = 100'000;
constexpr int64_t kChunk = 1000;
constexpr float kLowerBound = -5.0F;  // of the log-decay (K3 spec 3.4)

using State = std::array<double, kSize * kSize>;  // [key, value]

double norm(auto&& values) {
  double sum = 0.0;
  for (const auto value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

// S <- diag(e^g) S, then S += beta k (v - k^T S)^T, in float64.
void advance(State& state, const float* k, const float* v, double beta) {
  for (double& value : state) value *= std::exp(static_cast<double>(kLowerBound));
  for (int64_t j = 0; j < kSize; ++j) {
    double error = v[j];
    for (int64_t i = 0; i < kSize; ++i) error -= k[i] * state[static_cast<size_t>(i * kSize + j)];
    for (int64_t i = 0; i < kSize; ++i) state[static_cast<size_t>(i * kSize + j)] += beta * k[i] * error;
  }
}

TEST(C9, TheStateStaysBoundedOver100KSteps) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    TestContext context(backend);
    Random numbers(9);
    Tensor memory = Tensor::zeros(DType::f32, {1, kSize, kSize});
    const Tensor g = [] {
      Tensor made = Tensor::zeros(DType::f32, {kChunk, kSize});
      std::ranges::fill(made.as<float>(), kLowerBound);
      return made;
    }();
    State wanted{};
    double most = 0.0;
    for (int64_t done = 0; done < kSteps; done += kChunk) {
      const Tensor q = random(numbers, {kChunk, kSize});
      Tensor k = random(numbers, {kChunk, kSize});
      for (int64_t t = 0; t < kChunk; ++t) {
        const std::span<float> row = k.as<float>().subspan(static_cast<size_t>(t * kSize), kSize);
        const auto length = static_cast<float>(norm(row));
        for (float& value : row) value /= length;
      }
      const Tensor v = random(numbers, {kChunk, kSize});
      const Tensor beta = random(numbers, {kChunk, 1}, 8.0);
      Tensor o = Tensor::zeros(DType::f32, {kChunk, kSize});
      const StateSegment segment{0, kChunk, memory.as<float>().data(), memory.as<float>().data()};
      delta_rule(context, {1, 1, kSize, kSize, true}, q.view(), k.view(), v.view(), g.view(), beta.view(), {&segment, 1},
                 o.mutable_view());
      for (const float value : o.as<float>()) ASSERT_TRUE(std::isfinite(value));
      most = std::max(most, norm(memory.as<float>()));
      for (int64_t t = 0; t < kChunk; ++t) {
        const double strength = 1.0 / (1.0 + std::exp(-static_cast<double>(beta.as<float>()[static_cast<size_t>(t)])));
        advance(wanted, k.as<float>().data() + t * kSize, v.as<float>().data() + t * kSize, strength);
      }
    }
    // Each step shrinks the state by e^-5 at least (I - beta k k^T adds nothing for |k| = 1, beta <= 1) and adds |v| <= 4 at
    // most.
    EXPECT_LE(most, 4.0 / (1.0 - std::exp(static_cast<double>(kLowerBound))));
    EXPECT_GT(most, 0.1);
    double difference = 0.0;
    for (size_t i = 0; i < wanted.size(); ++i)
      difference = std::max(difference, std::fabs(wanted[i] - static_cast<double>(memory.as<float>()[i])));
    EXPECT_LE(difference, 1e-5 * norm(wanted)) << "float32 against float64";
  }
}

}  // namespace
}  // namespace weft::ops
