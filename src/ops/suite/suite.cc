#include "ops/suite/suite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "ops/sample.h"
#include "ops/suite/builder.h"

namespace weft::ops {
namespace {

// Ids exactly, the log-probabilities as a tensor of float32.
std::optional<std::string> difference_of_sampled(const CaseTensor& tensor, Profile profile, std::span<const int64_t> found,
                                                 std::span<const int64_t> wanted) {
  const auto rows = static_cast<int64_t>(wanted.size());
  Tensor a = Tensor::uninitialized(DType::f32, {rows});
  Tensor b = Tensor::uninitialized(DType::f32, {rows});
  for (size_t row = 0; row < wanted.size(); ++row) {
    const auto x = std::bit_cast<Sampled>(found[row]);
    const auto y = std::bit_cast<Sampled>(wanted[row]);
    if (x.id != y.id) return fmt::format("{}: row {}: wanted id {}, found {}", tensor.name, row, y.id, x.id);
    a.as<float>()[row] = x.logprob;
    b.as<float>()[row] = y.logprob;
  }
  return difference(tensor, profile, a.view(), b.view());
}

}  // namespace

std::vector<CaseSpec> cases(CaseSet set) {
  std::vector<CaseSpec> all;
  for (const auto list : {suite::embed_cases,
                          suite::linear_cases,
                          suite::rms_norm_cases,
                          suite::gather_rows_cases,
                          suite::add_cases,
                          suite::split_groups_cases,
                          suite::sigmoid_gate_cases,
                          suite::gated_activation_cases,
                          suite::residual_mix_cases,
                          suite::short_conv_cases,
                          suite::kda_gate_cases,
                          suite::delta_rule_cases,
                          suite::gated_rms_norm_cases,
                          suite::rotate_cases,
                          suite::mla_absorb_query_cases,
                          suite::mla_append_cases,
                          suite::mla_attention_cases,
                          suite::mla_project_value_cases,
                          suite::gqa_append_cases,
                          suite::gqa_attention_cases,
                          suite::route_cases,
                          suite::moe_cases,
                          suite::first_not_finite_cases,
                          suite::sample_cases}) {
    std::ranges::move(list(set), std::back_inserter(all));
  }
  return all;
}

HostOperands::HostOperands(const Case& of, int64_t weight_offset) {
  for (const CaseTensor& tensor : of.tensors) {
    if (tensor.role != Role::weight) {
      views_.push_back(memory_.emplace_back(tensor.initial).mutable_view());
      continue;
    }
    Tensor& bytes = memory_.emplace_back(Tensor::uninitialized(DType::u8, {weight_offset + tensor.initial.bytes()}));
    views_.push_back({DType::u8, tensor.initial.shape(), bytes.data() + weight_offset});
    std::memcpy(views_.back().data, tensor.initial.view().data, static_cast<size_t>(tensor.initial.bytes()));
  }
}

std::optional<std::string> difference(const CaseTensor& tensor, Profile profile, const TensorView& found,
                                      const TensorView& wanted) {
  const Tolerance& tolerance = tensor.tolerance;
  const double relative = profile == Profile::exact ? tolerance.exact : tolerance.bf16;
  const double steps = profile == Profile::exact ? 0.0 : tolerance.steps * 0x1p-7;
  if (relative == 0.0 && steps == 0.0) {
    const int64_t size = size_of(wanted.dtype);
    for (int64_t i = 0; i < wanted.elements(); ++i) {
      if (std::memcmp(found.data + i * size, wanted.data + i * size, static_cast<size_t>(size)) == 0) continue;
      return fmt::format("{}: element {} differs in its bits", tensor.name, i);
    }
    return {};
  }
  if (wanted.dtype == DType::i64) {
    return difference_of_sampled(tensor, profile, found.as<int64_t>(), wanted.as<int64_t>());
  }
  const std::span<const float> a = found.as<float>();
  const std::span<const float> b = wanted.as<float>();
  double largest = tolerance.magnitude;
  for (const float value : b) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  double worst = 0.0;  // beyond what is allowed
  std::optional<std::string> result;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double apart = std::fabs(static_cast<double>(a[i]) - b[i]);
    const double allowed = relative * largest + steps * std::fabs(static_cast<double>(b[i]));
    if (apart - allowed <= worst) continue;  // false for NaN
    worst = std::isfinite(apart - allowed) ? apart - allowed : INFINITY;
    result = fmt::format("{}: element {}: wanted {} within {:.3g}, found {}", tensor.name, i, b[i], allowed, a[i]);
  }
  return result;
}

}  // namespace weft::ops
