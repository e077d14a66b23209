#include "pipeline/compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/plural.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "comparison";

// ||a - b|| / ||b||; 0 for equal zeros.
double relative_l2(std::span<const float> a, std::span<const float> b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

double sum_abs(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += std::fabs(static_cast<double>(value));
  return sum;
}

OutputDifference difference(std::string name, std::span<const float> a, std::span<const float> b) {
  const double sum_a = sum_abs(a);
  const double sum_b = sum_abs(b);
  return {std::move(name), relative_l2(a, b), sum_a == sum_b ? 0.0 : sum_a / sum_b - 1.0, std::nullopt};
}

std::vector<int32_t> without(std::span<const int32_t> these, std::span<const int32_t> those) {
  std::vector<int32_t> left;
  std::ranges::set_difference(these, those, std::back_inserter(left));
  return left;
}

// The routers of one layer: flips are appended; returns the difference of the weights where there is none.
double compare_routers(LayerIndex layer, const LayerRouting& run, const LayerRouting& reference, std::vector<Flip>& flips) {
  const auto chosen = static_cast<size_t>(reference.experts.shape()[1]);
  std::vector<float> run_weights;
  std::vector<float> reference_weights;
  for (int64_t token = 0; token < reference.experts.shape()[0]; ++token) {
    const auto row = [&](const auto& all) { return all.subspan(static_cast<size_t>(token) * chosen, chosen); };
    const auto run_experts = row(run.experts.as<int32_t>());
    const auto reference_experts = row(reference.experts.as<int32_t>());
    if (std::ranges::equal(run_experts, reference_experts)) {
      std::ranges::copy(row(run.weights.as<float>()), std::back_inserter(run_weights));
      std::ranges::copy(row(reference.weights.as<float>()), std::back_inserter(reference_weights));
      continue;
    }
    flips.push_back({layer, token, without(run_experts, reference_experts), without(reference_experts, run_experts),
                     reference.margins.as<float>()[static_cast<size_t>(token)],
                     run.margins.as<float>()[static_cast<size_t>(token)]});
  }
  return relative_l2(run_weights, reference_weights);
}

void check_same_model(const Trace& run, const Trace& reference) {
  if (run.ids != reference.ids) fail(ErrorKind::bad_input, kPlace, "wanted runs of the same token ids, found others");
  const auto check = [](std::string_view what, const Shape& found, const Shape& wanted) {
    if (found != wanted) fail(ErrorKind::bad_input, kPlace, "{}: wanted {}, found {}", what, wanted, found);
  };
  check("hidden", run.hidden.shape(), reference.hidden.shape());
  check("logits", run.logits.shape(), reference.logits.shape());
  for (const auto& [layer, routing] : reference.routing) {
    const auto found = run.routing.find(layer);
    if (found == run.routing.end()) fail(ErrorKind::bad_input, kPlace, "layer {}: wanted a router's choice, found none", layer);
    check(fmt::format("layer {}, experts", layer), found->second.experts.shape(), routing.experts.shape());
  }
}

bool within(double value, double limit) { return std::fabs(value) <= limit; }  // false for NaN

}  // namespace

bool OutputDifference::passed() const {
  return within(l2, kMaxL2) && within(mean_abs, kMaxMeanAbs) && within(router_l2.value_or(0.0), kMaxL2);
}

bool Comparison::passed() const {
  return std::ranges::all_of(outputs, &OutputDifference::passed) && std::ranges::all_of(flips, &Flip::passed);
}

Comparison compare_traces(const Trace& run, const Trace& reference) {
  check_same_model(run, reference);
  Comparison made;
  made.tokens = static_cast<int64_t>(reference.ids.size());
  const int64_t entries = reference.hidden.shape()[0];
  const auto elements = static_cast<size_t>(reference.hidden.elements() / entries);
  for (int64_t entry = 0; entry < entries; ++entry) {
    const auto rows = [&](const Trace& trace) {
      return trace.hidden.as<float>().subspan(static_cast<size_t>(entry) * elements, elements);
    };
    const LayerIndex layer(entry - 1);
    const std::string name = entry == 0 ? "embedding" : fmt::format("layer {}", layer);
    made.outputs.push_back(difference(name, rows(run), rows(reference)));
    const auto routing = reference.routing.find(layer);
    if (routing == reference.routing.end()) continue;
    made.outputs.back().router_l2 = compare_routers(layer, run.routing.at(layer), routing->second, made.flips);
  }
  made.outputs.push_back(difference("logits", run.logits.as<float>(), reference.logits.as<float>()));
  return made;
}

Json Comparison::to_json() const {
  Json json = {{"passed", passed()},
               {"tokens", tokens},
               {"limits", {{"l2", kMaxL2}, {"mean_abs", kMaxMeanAbs}, {"flip_margin", kMaxFlipMargin}}},
               {"outputs", Json::array()},
               {"flips", Json::array()}};
  for (const OutputDifference& output : outputs) {
    Json entry = {{"name", output.name}, {"passed", output.passed()}, {"l2", output.l2}, {"mean_abs", output.mean_abs}};
    if (output.router_l2) entry["router_l2"] = *output.router_l2;
    json["outputs"].push_back(std::move(entry));
  }
  for (const Flip& flip : flips) {
    json["flips"].push_back({{"layer", flip.layer.value},
                             {"token", flip.token},
                             {"passed", flip.passed()},
                             {"chosen", flip.chosen},
                             {"not_chosen", flip.not_chosen},
                             {"margin", flip.margin},
                             {"own_margin", flip.own_margin}});
  }
  return json;
}

std::string Comparison::to_text() const {
  std::string text = fmt::format("      {:<10}  {:>9}  {:>9}  {:>9}\n", "output", "L2", "mean abs", "router L2");
  for (const OutputDifference& output : outputs) {
    text += fmt::format("{}  {:<10}  {:9.2e}  {:+8.3f}%", output.passed() ? "ok  " : "FAIL", output.name, output.l2,
                        100.0 * output.mean_abs);
    text += output.router_l2 ? fmt::format("  {:9.2e}\n", *output.router_l2) : "\n";
  }
  for (const Flip& flip : flips) {
    text += fmt::format("{}  layer {}, token {}: expert {} instead of {}, margin {:.2e} (reference {:.2e})\n",
                        flip.passed() ? "ok  " : "FAIL", flip.layer, flip.token, fmt::join(flip.chosen, ", "),
                        fmt::join(flip.not_chosen, ", "), flip.own_margin, flip.margin);
  }
  const auto count = static_cast<int64_t>(flips.size());
  text += fmt::format("{}: {}, limits L2 {:g}, mean abs {:g}%, margin of a flip {:g}; {}\n", passed() ? "passed" : "failed",
                      counted(tokens, "token"), kMaxL2, 100.0 * kMaxMeanAbs, kMaxFlipMargin, counted(count, "flip"));
  return text;
}

}  // namespace weft
