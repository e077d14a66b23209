// route, first_not_finite, sample.
#include <algorithm>
#include <limits>

#include "ops/first_not_finite.h"
#include "ops/sample.h"
#include "ops/suite/builder.h"

namespace weft::ops::suite {
namespace {

void add_route(SpecList& list, const RouterRule& rule, int64_t experts, int64_t rows) {
  const bool softmax = rule.score == RouterRule::Score::softmax;
  list.add(fmt::format("{} of {}{}{} rows {}", rule.experts_per_token, experts, softmax ? " softmax" : "",
                       rule.renormalize ? "" : " as scored", rows),
           [=](CaseBuilder& b) {
             const int64_t chosen = rule.experts_per_token;
             const size_t logits = b.vector("logits", {rows, experts}, -4.0, 4.0);
             const size_t bias = b.vector("bias", {experts}, -0.5, 0.5);
             const size_t ids = b.output("ids", {rows, chosen}, {}, DType::i32);
             const size_t weights = b.output("weights", {rows, chosen}, {kPerElement, kPerElement});
             const size_t margins = b.output("margins", {rows}, {kPerElement, kPerElement, 0, 1.0});
             return b.finish(6.0 * static_cast<double>(rows * experts), [=](Context& context, Operands o) {
               route(context, rule, o[logits], softmax ? TensorView() : TensorView(o[bias]), o[ids], o[weights],
                     o[margins].as<float>());
             });
           });
}

// The elements `faults` are NaN or an infinity. `again`: a second call for a later place, which changes nothing.
void add_first_not_finite(SpecList& list, int64_t rows, int64_t size, const std::vector<int64_t>& faults, bool again) {
  list.add(fmt::format("{} faults {} rows {}", size, faults.size(), rows), [=](CaseBuilder& b) {
    const size_t x = b.vector("x", {rows, size}, -8.0, 8.0);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const std::array<float, 3> values = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
    for (size_t i = 0; i < faults.size(); ++i) b.initial(x).as<float>()[static_cast<size_t>(faults[i])] = values[i % 3];
    const size_t first = b.output("first", {2}, {}, DType::i32);  // one code, kAllFinite before
    return b.finish(static_cast<double>(rows * size), [=](Context& context, Operands o) {
      first_not_finite(context, o[x], 7, {reinterpret_cast<uint64_t*>(o[first].data), 1});
      if (again) first_not_finite(context, o[x], 9, {reinterpret_cast<uint64_t*>(o[first].data), 1});
    });
  });
}

// One row for each of `params`; every second row has a mask, a bias, a prompt and a history.
void add_sample(SpecList& list, std::string_view name, int64_t vocabulary, const std::vector<SamplingParams>& params) {
  list.add(fmt::format("{} of {} rows {}", name, vocabulary, params.size()), [=](CaseBuilder& b) {
    const auto rows = static_cast<int64_t>(params.size());
    const auto any_id = [&](size_t) { return static_cast<int32_t>(b.random().below(vocabulary)); };
    const size_t logits = b.vector("logits", {rows, vocabulary}, -8.0, 8.0);
    const size_t history = b.ids("history", {20}, any_id);
    const size_t prompt = b.ids("prompt", {50}, any_id);
    const size_t exempt = b.ids("never penalised", {1}, [&](size_t) { return static_cast<int32_t>(vocabulary - 1); });
    const size_t allowed = b.ids("allowed", {(vocabulary + 31) / 32},
                                 [&](size_t) { return static_cast<int32_t>(static_cast<uint32_t>(b.random().bits()) | 1U); });
    const Tolerance tolerance{kPerElement, kPerElement, 0, 1.0};
    const size_t out = b.output("sampled", {rows}, tolerance, DType::i64);
    return b.finish(4.0 * static_cast<double>(rows * vocabulary), [=](Context& context, Operands o) {
      const auto ids_of = [&](size_t index) { return TensorView(o[index]).as<int32_t>(); };
      const std::vector<LogitBias> bias = {{0, -3.5F}, {static_cast<int32_t>(vocabulary / 2), 4.0F}};
      std::vector<SampleRow> each;
      for (size_t r = 0; r < params.size(); ++r) {
        SampleRow& row = each.emplace_back();
        row.params = params[r];
        row.params.seed = 17 + r;
        row.position = static_cast<int64_t>(100 * r);
        if (r % 2 == 0) continue;
        row.history = ids_of(history);
        row.prompt = ids_of(prompt);
        row.never_penalised = ids_of(exempt);
        if (vocabulary > 1) row.bias = bias;
        row.allowed = {reinterpret_cast<const uint32_t*>(o[allowed].data), static_cast<size_t>(o[allowed].elements())};
      }
      sample(context, o[logits], each, {reinterpret_cast<Sampled*>(o[out].data), params.size()});
    });
  });
}

SamplingParams vendor() {  // temperature 1, top-p 0.95: what the publisher recommends
  SamplingParams params;
  params.top_p = 0.95F;
  return params;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

// Each parameter at work in a masked row and in a free one.
std::vector<SamplingParams> every_parameter() {
  std::vector<SamplingParams> all = {greedy(), greedy(), vendor(), vendor()};
  for (int i = 0; i < 2; ++i) {
    SamplingParams& cut = all.emplace_back();
    cut.temperature = 0.7F;
    cut.top_k = 5;
    cut.min_p = 0.05F;
  }
  for (int i = 0; i < 2; ++i) {
    SamplingParams& penalised = all.emplace_back();
    penalised.repetition_penalty = 1.3F;
    penalised.frequency_penalty = 0.5F;
    penalised.presence_penalty = -0.25F;
  }
  return all;
}

}  // namespace

std::vector<CaseSpec> route_cases(CaseSet set) {
  SpecList list("route");
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 64}) add_route(list, {16, true, 1.0F}, 896, rows);
    for (const int64_t rows : {1, 64}) add_route(list, {10, true, 1.0F, RouterRule::Score::softmax}, 512, rows);
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const int64_t experts = kAwkward[i];
    add_route(list, {std::min<int64_t>(4, experts), true, 2.446F}, experts, i % 2 == 0 ? 17 : 1);
    add_route(list, {std::min<int64_t>(16, experts), i % 2 == 0, 1.0F}, experts, 3);
    add_route(list, {std::min<int64_t>(10, experts), i % 2 == 0, 1.5F, RouterRule::Score::softmax}, experts, 17);
  }
  return std::move(list).take();
}

std::vector<CaseSpec> first_not_finite_cases(CaseSet set) {
  SpecList list("first_not_finite");
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 512}) add_first_not_finite(list, rows, 7168, {}, false);
    return std::move(list).take();
  }
  for (const int64_t size : kAwkward) {
    const int64_t last = 17 * size - 1;
    add_first_not_finite(list, 17, size, {}, true);
    add_first_not_finite(list, 17, size, {last}, true);
    add_first_not_finite(list, 17, size, {last, last / 2, last / 3}, true);
    add_first_not_finite(list, 17, size, {last, last / 2}, true);
  }
  return std::move(list).take();
}

std::vector<CaseSpec> sample_cases(CaseSet set) {
  SpecList list("sample");
  if (set == CaseSet::k3) {
    add_sample(list, "greedy", 163840, {greedy()});
    add_sample(list, "top-p 0.95", 163840, {vendor()});
    add_sample(list, "every parameter", 163840, every_parameter());
    return std::move(list).take();
  }
  for (const int64_t vocabulary : kAwkward) add_sample(list, "every parameter", vocabulary, every_parameter());
  return std::move(list).take();
}

}  // namespace weft::ops::suite
