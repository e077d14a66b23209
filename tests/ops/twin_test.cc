// Operators against other forms of the same formula, evaluated here in float64: the chunked delta rule of K3
// spec 3.4 (of which the one of Qwen3-Next spec 3.3 is a case), the expanded MLA of K3 spec 3.5, softmax attention.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/ops_test_util.h"

namespace weft::ops {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix zeros(int64_t rows, int64_t columns) {
  return Matrix(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
}

class Twin : public testing::TestWithParam<Backend> {
 protected:
  TestContext context_{GetParam(), Profile::exact, 2};
  Random random_{3};
};

INSTANTIATE_TEST_SUITE_P(Backends, Twin, testing::Values(Backend::reference, Backend::cpu),
                         [](const auto& each) { return std::string(to_string(each.param)); });

// One chunk of one head; rows are tokens. `s` is the state that enters and leaves.
Matrix chunk(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& g, const std::vector<double>& beta, Matrix& s) {
  const size_t count = q.size();
  const size_t keys = q[0].size();
  const size_t values = v[0].size();
  Matrix sum = g;  // G, inclusive
  for (size_t t = 1; t < count; ++t) {
    for (size_t i = 0; i < keys; ++i) sum[t][i] += sum[t - 1][i];
  }
  const auto decayed = [&](const std::vector<double>& a, size_t t, size_t source) {
    double total = 0.0;
    for (size_t i = 0; i < keys; ++i) total += a[i] * k[source][i] * std::exp(sum[t][i] - sum[source][i]);
    return total;
  };
  Matrix u = v;
  Matrix o = v;
  for (size_t t = 0; t < count; ++t) {
    for (size_t j = 0; j < values; ++j) {
      double value = v[t][j];
      for (size_t i = 0; i < keys; ++i) value -= k[t][i] * std::exp(sum[t][i]) * s[i][j];
      u[t][j] = beta[t] * value;
    }
    for (size_t source = 0; source < t; ++source) {
      const double a = beta[t] * decayed(k[t], t, source);
      for (size_t j = 0; j < values; ++j) u[t][j] -= a * u[source][j];
    }
    for (size_t j = 0; j < values; ++j) {
      o[t][j] = 0.0;
      for (size_t i = 0; i < keys; ++i) o[t][j] += q[t][i] * std::exp(sum[t][i]) * s[i][j];
    }
    for (size_t source = 0; source <= t; ++source) {
      const double m = decayed(q[t], t, source);
      for (size_t j = 0; j < values; ++j) o[t][j] += m * u[source][j];
    }
  }
  for (size_t i = 0; i < keys; ++i) {
    for (size_t j = 0; j < values; ++j) {
      double value = std::exp(sum[count - 1][i]) * s[i][j];
      for (size_t source = 0; source < count; ++source) {
        value += std::exp(sum[count - 1][i] - sum[source][i]) * k[source][i] * u[source][j];
      }
      s[i][j] = value;
    }
  }
  return o;
}

TEST_P(Twin, DeltaRuleChunked) {
  for (const DeltaShape& shape : {DeltaShape{2, 2, 16, 16, true}, DeltaShape{2, 6, 16, 12, false}}) {
    const int64_t rows = 150;  // two chunks of 64 and a short one
    const int64_t heads = shape.value_heads;
    const int64_t keys = shape.key_size;
    const int64_t values = shape.value_size;
    const Tensor q = random(random_, {rows, shape.key_heads * keys}, 2.0);
    const Tensor k = random(random_, {rows, shape.key_heads * keys}, 2.0);
    const Tensor v = random(random_, {rows, heads * values}, 2.0);
    Tensor g = empty({rows, heads * (shape.decay_per_channel ? keys : 1)});
    for (float& value : g.as<float>()) {
      // Half of the gates are mild, the others go down to -5: mild gates alone hide every chunk fault (K3 spec 8.2).
      value = static_cast<float>(random_.uniform(0.0, 1.0) < 0.5 ? random_.uniform(-0.1, 0.0) : random_.uniform(-5.0, 0.0));
    }
    const Tensor beta = random(random_, {rows, heads}, 3.0);
    Tensor state = random(random_, {heads, keys, values}, 1.0);
    const Tensor initial = state;
    Tensor o = empty({rows, heads * values});
    const StateSegment segment{0, rows, state.as<float>().data(), state.as<float>().data()};
    delta_rule(context_, shape, q.view(), k.view(), v.view(), g.view(), beta.view(), {&segment, 1}, o.mutable_view());

    double o_error = 0.0;
    double o_size = 0.0;
    double s_error = 0.0;
    double s_size = 0.0;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t key_head = head / (heads / shape.key_heads);
      Matrix s = zeros(keys, values);
      const auto state_at = [&](const Tensor& from, size_t i, size_t j) {
        return static_cast<double>(from.as<float>()[(static_cast<size_t>(head * keys) + i) * static_cast<size_t>(values) + j]);
      };
      for (size_t i = 0; i < s.size(); ++i) {
        for (size_t j = 0; j < s[i].size(); ++j) s[i][j] = state_at(initial, i, j);
      }
      for (int64_t begin = 0; begin < rows; begin += 64) {
        const int64_t count = std::min<int64_t>(64, rows - begin);
        // Rows of the chunk, columns of a head; `step` 0 repeats the column.
        const auto part = [&](const Tensor& from, int64_t of_head, int64_t size, int64_t step = 1) {
          Matrix result = zeros(count, size);
          const int64_t first = of_head * (step == 0 ? 1 : size);
          for (int64_t t = 0; t < count; ++t) {
            for (int64_t i = 0; i < size; ++i) {
              result[static_cast<size_t>(t)][static_cast<size_t>(i)] =
                  from.as<float>()[static_cast<size_t>((begin + t) * from.shape()[1] + first + i * step)];
            }
          }
          return result;
        };
        const auto normalise = [&](Matrix rows_in, double factor) {
          for (std::vector<double>& row : rows_in) {
            double squares = 1e-6;
            for (const double value : row) squares += value * value;
            for (double& value : row) value *= factor / std::sqrt(squares);
          }
          return rows_in;
        };
        std::vector<double> beta_part;
        for (int64_t t = 0; t < count; ++t) {
          beta_part.push_back(1.0 / (1.0 + std::exp(-beta.as<float>()[static_cast<size_t>((begin + t) * heads + head)])));
        }
        const Matrix wanted = chunk(normalise(part(q, key_head, keys), 1.0 / std::sqrt(static_cast<double>(keys))),
                                    normalise(part(k, key_head, keys), 1.0), part(v, head, values),
                                    part(g, head, keys, shape.decay_per_channel ? 1 : 0), beta_part, s);
        const Matrix found = part(o, head, values);
        for (size_t t = 0; t < wanted.size(); ++t) {
          for (size_t j = 0; j < wanted[t].size(); ++j) {
            o_error = std::max(o_error, std::fabs(found[t][j] - wanted[t][j]));
            o_size = std::max(o_size, std::fabs(wanted[t][j]));
          }
        }
      }
      for (size_t i = 0; i < s.size(); ++i) {
        for (size_t j = 0; j < s[i].size(); ++j) {
          s_error = std::max(s_error, std::fabs(state_at(state, i, j) - s[i][j]));
          s_size = std::max(s_size, std::fabs(s[i][j]));
        }
      }
    }
    // float32 against float64 over 150 dependent steps, each of which contracts earlier errors.
    EXPECT_LE(o_error, 2e-6 * o_size);
    EXPECT_LE(s_error, 2e-6 * s_size);
  }
}

TEST_P(Twin, MlaExpanded) {
  const MlaShape shape{3, 8, 4, 6, 16};
  const int64_t rows = 600;  // two blocks of 256 and a part
  const TestWeight kv_b = random_weight(random_, WeightFormat::bf16, shape.heads * (shape.nope + shape.value), shape.latent);
  const Tensor q = random(random_, {rows, shape.heads * (shape.nope + shape.rope)}, 4.0);
  const Tensor c = random(random_, {rows, shape.latent}, 2.0);
  const Tensor k_r = random(random_, {rows, shape.rope}, 2.0);
  const int64_t width = shape.latent + shape.rope;
  Tensor cache = empty({10 * kPageTokens, width});
  std::vector<float*> pages;
  for (int64_t i = 9; i >= 0; --i)
    pages.push_back(cache.as<float>().data() + i * kPageTokens * width);  // in no order of memory
  const PagedSegment segment{0, rows, 0, pages};
  Tensor ql = empty({rows, shape.heads * shape.latent});
  Tensor lat = empty({rows, shape.heads * shape.latent});
  Tensor o = empty({rows, shape.heads * shape.value});
  mla_append(context_, shape, c.view(), k_r.view(), {&segment, 1});
  mla_absorb_query(context_, shape, q.view(), kv_b.view(), ql.mutable_view());
  mla_attention(context_, shape, q.view(), ql.view(), {&segment, 1}, lat.mutable_view());
  mla_project_value(context_, shape, lat.view(), kv_b.view(), o.mutable_view());

  const auto weight = [&](int64_t row, int64_t column) {
    uint16_t bits = 0;
    std::memcpy(&bits, kv_b.view().data + 2 * (row * shape.latent + column), 2);
    return static_cast<double>(bf16_to_f32(bits));
  };
  // k [rows, dn], v [rows, dv] of one head from the latents.
  const auto expand = [&](int64_t first, int64_t count) {
    Matrix result = zeros(rows, count);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t l = 0; l < shape.latent; ++l) {
          result[static_cast<size_t>(t)][static_cast<size_t>(i)] +=
              weight(first + i, l) * c.as<float>()[static_cast<size_t>(t * shape.latent + l)];
        }
      }
    }
    return result;
  };
  double error = 0.0;
  double size = 0.0;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t first = head * (shape.nope + shape.value);
    const Matrix k = expand(first, shape.nope);
    const Matrix v = expand(first + shape.nope, shape.value);
    for (int64_t t = 0; t < rows; ++t) {
      const float* query = q.as<float>().data() + (t * shape.heads + head) * (shape.nope + shape.rope);
      std::vector<double> score;
      for (int64_t s = 0; s <= t; ++s) {
        double dot = 0.0;
        for (int64_t i = 0; i < shape.nope; ++i) dot += query[i] * k[static_cast<size_t>(s)][static_cast<size_t>(i)];
        for (int64_t i = 0; i < shape.rope; ++i)
          dot += static_cast<double>(query[shape.nope + i]) * k_r.as<float>()[static_cast<size_t>(s * shape.rope + i)];
        score.push_back(dot / std::sqrt(static_cast<double>(shape.nope + shape.rope)));
      }
      const double max = *std::ranges::max_element(score);
      double sum = 0.0;
      for (double& value : score) sum += value = std::exp(value - max);
      for (int64_t j = 0; j < shape.value; ++j) {
        double wanted = 0.0;
        for (size_t s = 0; s < score.size(); ++s) wanted += score[s] / sum * v[s][static_cast<size_t>(j)];
        const double found = o.as<float>()[static_cast<size_t>((t * shape.heads + head) * shape.value + j)];
        error = std::max(error, std::fabs(found - wanted));
        size = std::max(size, std::fabs(wanted));
      }
    }
  }
  EXPECT_LE(error, 1e-5 * size);
}

TEST_P(Twin, GqaAttention) {
  const GqaShape shape{6, 2, 20};
  const int64_t rows = 600;  // two blocks of 256 and a part
  const int64_t width = shape.kv_heads * shape.size;
  const Tensor q = random(random_, {rows, shape.heads * shape.size}, 4.0);
  const Tensor k = random(random_, {rows, width}, 2.0);
  const Tensor v = random(random_, {rows, width}, 2.0);
  Tensor cache = empty({10 * kPageTokens, 2 * width});
  std::vector<float*> pages;
  for (int64_t i = 9; i >= 0; --i) pages.push_back(cache.as<float>().data() + i * kPageTokens * 2 * width);
  const PagedSegment segment{0, rows, 0, pages};
  Tensor out = empty({rows, shape.heads * shape.size});
  gqa_append(context_, shape, k.view(), v.view(), {&segment, 1});
  gqa_attention(context_, shape, q.view(), {&segment, 1}, out.mutable_view());

  double error = 0.0;
  double size = 0.0;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t kv_head = head / 3;
    const auto cached = [&](const Tensor& from, size_t s) {
      return from.as<float>().data() + static_cast<int64_t>(s) * width + kv_head * shape.size;
    };
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = (t * shape.heads + head) * shape.size;
      std::vector<double> score(static_cast<size_t>(t) + 1);
      for (size_t s = 0; s < score.size(); ++s) {
        for (int64_t i = 0; i < shape.size; ++i) {
          score[s] += static_cast<double>(q.as<float>()[static_cast<size_t>(at + i)]) * cached(k, s)[i];
        }
        score[s] /= std::sqrt(static_cast<double>(shape.size));
      }
      const double max = *std::ranges::max_element(score);
      double sum = 0.0;
      for (double& value : score) sum += value = std::exp(value - max);
      for (int64_t i = 0; i < shape.size; ++i) {
        double wanted = 0.0;
        for (size_t s = 0; s < score.size(); ++s) wanted += score[s] / sum * cached(v, s)[i];
        error = std::max(error, std::fabs(out.as<float>()[static_cast<size_t>(at + i)] - wanted));
        size = std::max(size, std::fabs(wanted));
      }
    }
  }
  EXPECT_LE(error, 1e-5 * size);
}

}  // namespace
}  // namespace weft::ops
