// Makes the tensors of a case, and the lists that make up the suite.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "ops/ops.h"
#include "ops/suite/random.h"
#include "ops/suite/suite.h"
#include "ops/suite/weight_form.h"

namespace weft::ops::suite {

inline constexpr std::array<int64_t, 11> kAwkward = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127};
inline constexpr double kPerElement = 1e-6;  // functions of one element: a few float32 steps of exp and tanh

// Two float32 sums of n terms in different orders: the rounding errors walk; the last additions, of partial sums, weigh most.
[[nodiscard]] inline double of_sum(int64_t n) { return 0x1p-22 + 0x1p-24 * std::sqrt(static_cast<double>(n)); }

// A stored weight among the operands: which ones, and its shape.
struct StoredWeight {
  WeightView shape;  // without memory
  size_t data = 0;
  size_t scales = 0;  // mxfp4, fp8_block, affine
  size_t biases = 0;  // affine

  [[nodiscard]] WeightView view(Operands operands) const;
};
inline constexpr double kWeightSize = 0.08;  // root of the mean square of all stored weights, about

// Adds tensors in the order of the operands; each function returns the operand's index.
class CaseBuilder {
 public:
  // The same profile, operator and sizes give the same values.
  CaseBuilder(Profile profile, std::string_view op, std::string_view sizes);

  // Float32 in [low, high].
  size_t vector(std::string name, const Shape& shape, double low, double high);
  // The same in [-range, range]; bfloat16 values in profile bf16.
  size_t activation(std::string name, const Shape& shape, double range = 1.0);
  size_t input(std::string name, Tensor values) { return add(std::move(name), Role::input, std::move(values)); }
  size_t ids(std::string name, const Shape& shape, const std::function<int32_t(size_t)>& value);
  StoredWeight weight(const std::string& name, const WeightForm& form, int64_t out, int64_t in);
  // Read and written, values in [-1, 1].
  size_t state(std::string name, const Shape& shape, const Tolerance& tolerance);
  size_t output(std::string name, const Shape& shape, const Tolerance& tolerance, DType dtype = DType::f32);

  [[nodiscard]] Tensor& initial(size_t index) { return case_.tensors[index].initial; }
  [[nodiscard]] Random& random() { return random_; }

  // bytes: each tensor once, what is read and written twice, unless `bytes` says otherwise.
  [[nodiscard]] Case finish(double operations, std::function<void(Context&, Operands)> call, int64_t bytes = -1);

 private:
  size_t add(std::string name, Role role, Tensor initial, const Tolerance& tolerance = {});

  Profile profile_;
  Random random_;
  Case case_;
};

// Collects specs of one operator. `body` adds the tensors and finishes the case.
class SpecList {
 public:
  explicit SpecList(std::string op) : op_(std::move(op)) {}
  void add(std::string sizes, std::function<Case(CaseBuilder&)> body);
  [[nodiscard]] std::vector<CaseSpec> take() && { return std::move(specs_); }

 private:
  std::string op_;
  std::vector<CaseSpec> specs_;
};

// One function for each operator, in the order of ops.h.
std::vector<CaseSpec> embed_cases(CaseSet set);
std::vector<CaseSpec> linear_cases(CaseSet set);
std::vector<CaseSpec> rms_norm_cases(CaseSet set);
std::vector<CaseSpec> gather_rows_cases(CaseSet set);
std::vector<CaseSpec> add_cases(CaseSet set);
std::vector<CaseSpec> split_groups_cases(CaseSet set);
std::vector<CaseSpec> sigmoid_gate_cases(CaseSet set);
std::vector<CaseSpec> gated_activation_cases(CaseSet set);
std::vector<CaseSpec> residual_mix_cases(CaseSet set);
std::vector<CaseSpec> short_conv_cases(CaseSet set);
std::vector<CaseSpec> kda_gate_cases(CaseSet set);
std::vector<CaseSpec> delta_rule_cases(CaseSet set);
std::vector<CaseSpec> gated_rms_norm_cases(CaseSet set);
std::vector<CaseSpec> rotate_cases(CaseSet set);
std::vector<CaseSpec> mla_absorb_query_cases(CaseSet set);
std::vector<CaseSpec> mla_append_cases(CaseSet set);
std::vector<CaseSpec> mla_attention_cases(CaseSet set);
std::vector<CaseSpec> mla_project_value_cases(CaseSet set);
std::vector<CaseSpec> gqa_append_cases(CaseSet set);
std::vector<CaseSpec> gqa_attention_cases(CaseSet set);
std::vector<CaseSpec> route_cases(CaseSet set);
std::vector<CaseSpec> moe_cases(CaseSet set);
std::vector<CaseSpec> first_not_finite_cases(CaseSet set);
std::vector<CaseSpec> sample_cases(CaseSet set);

}  // namespace weft::ops::suite
