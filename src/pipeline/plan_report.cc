// How a plan is shown.
#include "base/plural.h"
#include "pipeline/plan.h"

namespace weft {
namespace {

std::string range_text(LayerRange range) {
  return range.size() == 1 ? fmt::format("{}", range.begin) : fmt::format("{}-{}", range.begin, range.end.value - 1);
}

double percent(const PlanStage& stage) {
  return 100.0 * static_cast<double>(stage.used()) / static_cast<double>(*stage.budget);
}

}  // namespace

std::string PlanStage::weights_text() const {
  std::string text = fmt::format("{} of weights", with_commas(weights));
  if (vectors > 0)
    text += fmt::format(": {} of layers and head, {} of final norm and output mix", with_commas(weights - vectors),
                        with_commas(vectors));
  return text;
}

Json Plan::to_json() const {
  Json json = {{"layers", layer_count},   {"profile", std::string(to_string(profile))}, {"estimated", estimated},
               {"weight_bytes", weights}, {"read_bytes_per_token", read_per_token},     {"imbalance", imbalance}};
  if (budget) {
    json["process_bytes"] = *process;
    json["used_bytes"] = used();
    json["budget_bytes"] = *budget;
  }
  if (tokens_per_second) json["tokens_per_second_limit"] = *tokens_per_second;
  json["balance"] = std::string(to_string(balance));
  json["predicted_bubble"] = {{"one_sequence", bubble_alone}, {"full", bubble_full}};
  json["warnings"] = warnings;
  json["stages"] = Json::array();
  for (const PlanStage& s : stages) {
    Json stage = {{"layers", {s.layers.begin.value, s.layers.end.value - 1}}, {"kinds", Json::object()}};
    if (!s.node.empty()) stage["node"] = s.node;
    for (const auto& [kind, count] : s.kinds) stage["kinds"][kind] = count;
    stage["shards"] = s.shards;
    stage["weight_bytes"] = s.weights;
    stage["expert_bytes"] = s.experts;
    stage["expert_bytes_kept"] = s.experts_kept;
    stage["layer_and_head_bytes"] = s.weights - s.vectors;
    stage["final_norm_and_mix_bytes"] = s.vectors;
    stage["state_bytes_per_sequence"] = s.state_fixed;
    stage["state_bytes_per_token"] = s.state_per_token;
    stage["state_bytes_reserved"] = s.state;
    stage["workspace_bytes"] = s.workspace;
    stage["used_bytes"] = s.used();
    stage["read_bytes_per_token"] = s.read_per_token;
    if (s.budget) {
      stage["budget_bytes"] = *s.budget;
      stage["budget_percent"] = percent(s);
    }
    if (s.seconds_per_token) stage["seconds_per_token"] = *s.seconds_per_token;
    if (s.hop_seconds) stage["hop_seconds"] = *s.hop_seconds;
    if (s.boundary_planes > 0)
      stage["boundary"] = {{"layer", s.layers.end.value},
                           {"planes", s.boundary_planes},
                           {"width", s.boundary_width},
                           {"bytes_per_token", s.boundary_bytes}};
    json["stages"].push_back(std::move(stage));
  }
  return json;
}

std::string Plan::to_text() const {
  std::string text = fmt::format("{} in {}, profile {}, {} bytes of weights ({}){}\n", counted(layer_count, "layer"),
                                 counted(std::ssize(stages), "stage"), to_string(profile), with_commas(weights),
                                 human_bytes(weights), estimated ? ", estimated" : "");
  for (size_t i = 0; i < stages.size(); ++i) {
    const PlanStage& s = stages[i];
    std::vector<std::string> kinds;
    for (const auto& [kind, count] : s.kinds) kinds.push_back(fmt::format("{} {}", count, kind));
    text += fmt::format("stage {}{}: layers {} ({})\n", i, s.node.empty() ? "" : fmt::format(" on {}", s.node),
                        range_text(s.layers), fmt::join(kinds, ", "));
    text += fmt::format("  weights    {:>20} bytes ({})", with_commas(s.weights), human_bytes(s.weights));
    if (s.shards.size() == 1) text += fmt::format(", file {}", s.shards.front());
    if (s.shards.size() > 1) text += fmt::format(", {} files, {} to {}", s.shards.size(), s.shards.front(), s.shards.back());
    if (s.experts_kept < s.experts)
      text += fmt::format("\n  experts    {:>20} bytes kept of {}; the others are read again when they are named",
                          with_commas(s.experts_kept), with_commas(s.experts));
    text += fmt::format("\n  state      {:>20} bytes reserved ({} a sequence and {} a token)\n", with_commas(s.state),
                        with_commas(s.state_fixed), with_commas(s.state_per_token));
    text += fmt::format("  workspace  {:>20} bytes\n", with_commas(s.workspace));
    text += fmt::format("  in all     {:>20} bytes", with_commas(s.used()));
    if (s.budget) text += fmt::format(" of {} ({:.1f} %)", with_commas(*s.budget), percent(s));
    text += fmt::format("\n  read       {:>20} bytes a token", with_commas(s.read_per_token));
    if (s.seconds_per_token) text += fmt::format(", {:.3f} ms", 1000.0 * *s.seconds_per_token);
    text += "\n";
    if (s.vectors > 0) text += fmt::format("  that is    {}\n", s.weights_text());
    if (s.boundary_planes > 0)
      text += fmt::format("  boundary before layer {}: {}, width {}, {} bytes a token{}\n", s.layers.end,
                          counted(s.boundary_planes, "plane"), s.boundary_width, with_commas(s.boundary_bytes),
                          s.hop_seconds ? fmt::format(", {:.3f} ms", 1000.0 * *s.hop_seconds) : "");
  }
  if (budget)
    text += fmt::format("process {} bytes; in all {} of {} bytes ({:.1f} %)\n", with_commas(*process), with_commas(used()),
                        with_commas(*budget), 100.0 * static_cast<double>(used()) / static_cast<double>(*budget));
  text += fmt::format(
      "balance {}, read per token {} bytes, imbalance {:.3f}, bubble {:.1f} % with one sequence and {:.1f} % with enough",
      to_string(balance), with_commas(read_per_token), imbalance, 100.0 * bubble_alone, 100.0 * bubble_full);
  if (tokens_per_second) text += fmt::format(", limit {:.2f} tokens/s for one sequence", *tokens_per_second);
  text += "\n";
  for (const std::string& warning : warnings) text += fmt::format("warning: {}\n", warning);
  return text;
}

}  // namespace weft
