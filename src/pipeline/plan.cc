#include "pipeline/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/utf8.h"
#include "pipeline/plan_split.h"

namespace weft {
namespace {

constexpr int64_t kMostStateBytes = 1LL << 60;  // of a stage
constexpr std::string_view kPlace = "plan";
constexpr int64_t kExactBelow = 1LL << 30;   // weight bytes under which the default profile is exact
constexpr double kImbalanceWarning = 1.5;    // distributed.md 3.6
constexpr double kAssumedBandwidth = 100e9;  // bytes/s, to weigh times against hops where nothing is known
constexpr double kMostTime = 0x1p60;         // of all times of a split together, in their unit
constexpr double kFinestTime = 1e12;         // units of a second, at most
constexpr double kLongestTime = 1e18;        // seconds: what takes longer counts as that, so that sums are numbers

// Of a process beside its stages: the program with its libraries, buffers and tokenizer, and the checkpoint's tables.
constexpr int64_t kProgramBytes = 44LL << 20;  // of which some 12 MiB are the libraries of gRPC
constexpr int64_t kTensorBytes = 512;          // an expert's views and names

// Of what crosses a boundary.
int64_t element_bytes(ops::Profile profile) { return profile == ops::Profile::exact ? 4 : 2; }

// Of convolution rows and latents as a StatePool holds them: float32 in both profiles.
constexpr int64_t kStateElementBytes = 4;

void check_options(const PlanModel& model, const PlanOptions& options) {
  if (!(options.reserve_fraction >= 0.0 && options.reserve_fraction < 0.5))
    fail(ErrorKind::bad_input, kPlace, "reserve: wanted 0 <= x < 0.5, found {}", options.reserve_fraction);
  if (options.sequences < 0 || options.tokens.value < 0)
    fail(ErrorKind::bad_input, kPlace, "wanted room for 0 or more sequences and tokens, found {} and {}", options.sequences,
         options.tokens);
  if (options.prefill_chunk < 1)
    fail(ErrorKind::bad_input, kPlace, "prefill chunk: wanted 1 or more rows, found {}", options.prefill_chunk);
  if (options.bandwidth && !(std::isfinite(*options.bandwidth) && *options.bandwidth > 0.0))
    fail(ErrorKind::bad_input, kPlace, "bandwidth: wanted a positive number of bytes/s, found {}", *options.bandwidth);
  for (const double bandwidth : options.node_bandwidth)
    if (!(std::isfinite(bandwidth) && bandwidth >= 0.0))
      fail(ErrorKind::bad_input, kPlace, "bandwidth of a node: wanted 0 or more bytes/s, found {}", bandwidth);
  if (options.link && !(std::isfinite(options.link->latency) && options.link->latency >= 0.0 &&
                        std::isfinite(options.link->bandwidth) && options.link->bandwidth > 0.0))
    fail(ErrorKind::bad_input, kPlace, "link: wanted 0 or more seconds and a positive number of bytes/s, found {} and {}",
         options.link->latency, options.link->bandwidth);
  if (options.memory && (*options.memory < 1 || !options.node_memory.empty()))
    fail(ErrorKind::bad_input, kPlace, "memory: wanted a positive number of bytes, and the memory of nodes not beside it");
  for (const int64_t memory : options.node_memory)
    if (memory < 1) fail(ErrorKind::bad_input, kPlace, "node memory: wanted a positive number of bytes, found {}", memory);
  if (options.stages && *options.stages < 1)
    fail(ErrorKind::bad_input, kPlace, "pp-size: wanted 1 or more, found {}", *options.stages);
  if (options.stages && *options.stages > model.layer_count())
    fail(ErrorKind::plan_impossible, kPlace, "P10: {} stages for {} layers; wanted at most one stage per layer",
         *options.stages, model.layer_count());
}

// Prices ranges of layers for one set of options.
class Pricer {
 public:
  Pricer(const PlanModel& model, const PlanOptions& options, ops::Profile profile)
      : model_(model), options_(options), element_(element_bytes(profile)) {}

  [[nodiscard]] PlanStage price(LayerRange range) const {
    PlanStage stage;
    stage.layers = range;
    const bool first = range.begin.value == 0;
    const bool last = range.end.value == model_.layer_count();
    int64_t width = 0;
    for (int64_t l = range.begin.value; l < range.end.value; ++l) {
      const PlanModel::Layer& layer = model_.layers[static_cast<size_t>(l)];
      stage.weights += options_.gpu ? layer.gpu_weights : layer.weights;
      stage.experts += layer.experts;
      stage.read_per_token += layer.read;
      stage.state_fixed += layer.state_f32 + layer.state_values * kStateElementBytes;
      stage.state_per_token += layer.token_values * kStateElementBytes;
      width = std::max(width, layer.width);
    }
    if (first) {
      stage.weights += embedding();
      stage.read_per_token += model_.embedding_read;
    }
    if (last) {
      stage.vectors = model_.head_vectors;
      stage.weights += (options_.gpu ? model_.gpu_head : model_.head) + (model_.tied && !first ? embedding() : 0);
      stage.read_per_token += model_.head + (model_.tied ? model_.embedding : 0);
    }
    stage.experts_kept = stage.experts;
    const __int128 state = static_cast<__int128>(options_.sequences) *
                           (stage.state_fixed + static_cast<__int128>(options_.tokens.value) * stage.state_per_token);
    if (state > kMostStateBytes)
      fail(ErrorKind::bad_input, kPlace, "wanted sequences and tokens whose state has at most {} bytes, found {} of {}",
           with_commas(kMostStateBytes), options_.sequences, options_.tokens);
    stage.state = static_cast<int64_t>(state);
    const int64_t in = planes_at(range.begin.value);
    const int64_t out = last ? 0 : planes_at(range.end.value);
    if (!last) {
      stage.boundary_planes = out;
      stage.boundary_width = out * model_.hidden_size;
      stage.boundary_bytes = boundary_bytes(range.end.value);
    }
    // Activations in float32 plus two receive and two send buffers (distributed.md 3.3).
    const int64_t buffers = 2 * ((first ? 0 : in) + out) * model_.hidden_size * element_;
    const int64_t live_planes = last ? in + 1 : out;
    stage.workspace = options_.prefill_chunk * (buffers + 4 * (live_planes * model_.hidden_size + width));
    if (options_.gpu) stage.workspace = model_.gpu_workspace(range, options_.prefill_chunk);
    return stage;
  }

  // Bytes of the routed experts that one step can name in a layer of the stage, at most.
  [[nodiscard]] int64_t experts_of_step(LayerRange range) const {
    int64_t most = 0;
    for (int64_t l = range.begin.value; l < range.end.value; ++l) {
      const PlanModel::Layer& layer = model_.layers[static_cast<size_t>(l)];
      most = std::max(most, std::min(layer.experts, options_.prefill_chunk * model_.experts_per_token * layer.expert));
    }
    return most;
  }

  // Of one token before a layer.
  [[nodiscard]] int64_t boundary_bytes(int64_t layer) const { return planes_at(layer) * model_.hidden_size * element_; }

  [[nodiscard]] int64_t planes_at(int64_t layer) const {
    return layer < model_.layer_count() ? model_.layers[static_cast<size_t>(layer)].planes_before : 1;
  }

 private:
  [[nodiscard]] int64_t embedding() const { return options_.gpu ? model_.gpu_embedding : model_.embedding; }

  const PlanModel& model_;
  const PlanOptions& options_;
  int64_t element_;
};

int64_t budget_of(int64_t memory, double reserve) {
  return static_cast<int64_t>(std::floor(static_cast<long double>(memory) * (1.0L - static_cast<long double>(reserve))));
}

std::vector<int64_t> budgets_for(const PlanOptions& options, int64_t stages) {
  std::vector<int64_t> budgets;
  if (options.node_memory.empty()) return budgets;
  if (options.node_memory.size() != 1 && static_cast<int64_t>(options.node_memory.size()) != stages)
    fail(ErrorKind::bad_input, kPlace, "P07: node memory: wanted one size or one for each of {} stages, found {}", stages,
         options.node_memory.size());
  for (int64_t s = 0; s < stages; ++s) {
    const size_t node = options.node_memory.size() == 1 ? 0 : static_cast<size_t>(s);
    budgets.push_back(budget_of(options.node_memory[node], options.reserve_fraction));
  }
  return budgets;
}

// One value for each stage where there are any.
void check_counts(const PlanOptions& options, int64_t stages) {
  const auto check = [&](std::string_view what, int64_t found) {
    if (found != 0 && found != stages)
      fail(ErrorKind::bad_input, kPlace, "P07: wanted {} of {} stages, found {}", what, stages, found);
  };
  check("the bandwidths", std::ssize(options.node_bandwidth));
  check("the nodes", std::ssize(options.nodes));
}

// Bytes/s of the node of stage `s`, where it is known.
std::optional<double> bandwidth_of(const PlanOptions& options, int64_t s) {
  if (!options.node_bandwidth.empty() && options.node_bandwidth[static_cast<size_t>(s)] > 0.0)
    return options.node_bandwidth[static_cast<size_t>(s)];
  return options.bandwidth;
}

double hop_seconds(const PlanLink& link, int64_t boundary_bytes) {
  return link.latency + static_cast<double>(boundary_bytes) / link.bandwidth;
}

double reading_seconds(int64_t bytes, double bandwidth) {
  return std::min(static_cast<double>(bytes) / bandwidth, kLongestTime);
}

// Times of layers in integers, rounded layer by layer: the sum over stages with equal bandwidth is the same for every split.
class Clock {
 public:
  Clock(const PlanModel& model, const Pricer& pricer, const PlanOptions& options, int64_t stages)
      : layers_(model.layer_count()) {
    std::vector<double> bandwidths;
    for (int64_t s = 0; s < stages; ++s) bandwidths.push_back(bandwidth_of(options, s).value_or(kAssumedBandwidth));
    const PlanLink link = options.link.value_or(PlanLink{});
    std::vector<double> hops(static_cast<size_t>(layers_), 0.0);
    double most = 0.0;
    for (int64_t b = 1; b < layers_; ++b) {
      hops[static_cast<size_t>(b)] = std::min(hop_seconds(link, pricer.boundary_bytes(b)), kLongestTime);
      most += hops[static_cast<size_t>(b)];
    }
    const PlanStage all = pricer.price({LayerIndex(0), LayerIndex(layers_)});
    // Each of the times below is cut, so their sum may be more than the whole's.
    most += static_cast<double>(layers_ + 2) *
            reading_seconds(all.read_per_token + model.embedding, *std::ranges::min_element(bandwidths));
    const double scale = std::min(kFinestTime, kMostTime / (most + 1e-9));
    const auto units = [scale](double seconds) { return static_cast<int64_t>(std::llround(seconds * scale)); };
    for (const double seconds : hops) hops_.push_back(units(seconds));
    for (const double bandwidth : bandwidths) {
      std::vector<int64_t> until = {0};
      for (const PlanModel::Layer& layer : model.layers)
        until.push_back(until.back() + units(reading_seconds(layer.read, bandwidth)));
      until_.push_back(std::move(until));
      first_.push_back(units(reading_seconds(model.embedding_read, bandwidth)));
      last_.push_back(units(reading_seconds(model.head + (model.tied ? model.embedding : 0), bandwidth)));
    }
  }

  [[nodiscard]] int64_t time(int64_t stage, int64_t begin, int64_t end) const {
    const auto s = static_cast<size_t>(stage);
    return until_[s][static_cast<size_t>(end)] - until_[s][static_cast<size_t>(begin)] + (begin == 0 ? first_[s] : 0) +
           (end == layers_ ? last_[s] : 0);
  }
  [[nodiscard]] int64_t hop(int64_t boundary) const { return hops_[static_cast<size_t>(boundary)]; }

 private:
  int64_t layers_;
  std::vector<std::vector<int64_t>> until_;  // of each stage: of layers [0, l)
  std::vector<int64_t> first_;               // of each stage: beside its layers, if it is the first
  std::vector<int64_t> last_;
  std::vector<int64_t> hops_;  // of each boundary
};

SplitProblem split_problem(const PlanModel& model, const Pricer& pricer, int64_t stages, const std::vector<int64_t>& budgets) {
  SplitProblem problem;
  problem.layers = model.layer_count();
  problem.stages = stages;
  problem.budgets = budgets;
  problem.used = [&](int64_t begin, int64_t end) { return pricer.price({LayerIndex(begin), LayerIndex(end)}).used(); };
  problem.payload = [&](int64_t boundary) { return pricer.planes_at(boundary); };
  return problem;
}

std::vector<LayerRange> best_split(const PlanModel& model, const Pricer& pricer, const PlanOptions& options, int64_t stages,
                                   const std::vector<int64_t>& budgets) {
  const Clock clock(model, pricer, options, stages);
  SplitProblem problem = split_problem(model, pricer, stages, budgets);
  problem.objective = options.balance == PlanBalance::memory    ? SplitObjective::memory
                      : options.balance == PlanBalance::compute ? SplitObjective::compute
                                                                : SplitObjective::latency;
  problem.time = [&](int64_t stage, int64_t begin, int64_t end) { return clock.time(stage, begin, end); };
  problem.hop = [&](int64_t boundary) { return clock.hop(boundary); };
  return solve_split(problem);
}

std::string range_text(LayerRange range) { return fmt::format("{}-{}", range.begin, range.end.value - 1); }

// The smallest number of stages that fit on nodes of `budget` bytes each.
std::optional<int64_t> enough_stages(const PlanModel& model, const Pricer& pricer, int64_t from, int64_t budget) {
  for (int64_t stages = from; stages <= std::min<int64_t>(model.layer_count(), 256); ++stages) {
    const std::vector<int64_t> budgets(static_cast<size_t>(stages), budget);
    const std::vector<LayerRange> split = solve_split(split_problem(model, pricer, stages, budgets));
    if (std::ranges::all_of(split, [&](LayerRange range) { return pricer.price(range).used() <= budget; })) return stages;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const PlanModel& model, const Plan& plan, const Pricer& pricer, const PlanOptions& options) {
  std::string text;
  int64_t total = 0;
  size_t tightest = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    total += stage.shortfall();
    if (stage.shortfall() > plan.stages[tightest].shortfall()) tightest = s;
    text += fmt::format("{}stage {} (layers {}): needs {} bytes ({}), has {}, ", s > 0 ? "; " : "", s, range_text(stage.layers),
                        with_commas(stage.used()), stage.weights_text(), with_commas(*stage.budget));
    text += stage.shortfall() > 0
                ? fmt::format("short by {} ({})", with_commas(stage.shortfall()), human_bytes(stage.shortfall()))
                : fmt::format("fits");
  }
  text += fmt::format("; total shortfall {} bytes; tightest: stage {}; reserve {:.1f} %", with_commas(total), tightest,
                      100.0 * options.reserve_fraction);
  const int64_t smallest = *std::ranges::min_element(options.node_memory);
  const std::optional<int64_t> enough =
      enough_stages(model, pricer, static_cast<int64_t>(plan.stages.size()), budget_of(smallest, options.reserve_fraction));
  if (enough)
    text += fmt::format("; {} nodes of {} would do", *enough, human_bytes(smallest));
  else
    text += fmt::format("; no number of nodes of {} would do", human_bytes(smallest));
  fail(ErrorKind::plan_impossible, kPlace, "P09: the model does not fit: {}", text);
}

// Gives routed experts the memory that the rest of the plan leaves.
void keep_experts(const PlanModel& model, const PlanOptions& options, const Pricer& pricer, Plan& plan) {
  plan.process = kProgramBytes + kTensorBytes * model.tensors;
  plan.budget = budget_of(*options.memory, options.reserve_fraction);
  if (plan.used() <= *plan.budget) return;
  std::vector<int64_t> least;
  int64_t needed = 0;
  int64_t wanted = 0;  // beyond that
  for (PlanStage& stage : plan.stages) {
    least.push_back(pricer.experts_of_step(stage.layers));
    needed += least.back();
    wanted += stage.experts - least.back();
    stage.experts_kept = 0;
  }
  const int64_t room = *plan.budget - plan.used();
  if (room < needed)
    fail(ErrorKind::plan_impossible, kPlace,
         "P09: the model does not fit: without routed experts it needs {} bytes, those of one step of {} rows {} more, and {} "
         "({} without the reserve) leaves {}; more memory, fewer sequences or tokens, or a smaller prefill chunk",
         with_commas(plan.used()), options.prefill_chunk, with_commas(needed), human_bytes(*options.memory),
         with_commas(*plan.budget), with_commas(std::max<int64_t>(room, 0)));
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    PlanStage& stage = plan.stages[s];
    const auto share = static_cast<long double>(stage.experts - least[s]) / static_cast<long double>(wanted);
    stage.experts_kept = least[s] + static_cast<int64_t>(share * static_cast<long double>(room - needed));
  }
}

// Speed of one sequence, bubbles, and warnings about what they rest on.
void predict_times(const PlanOptions& options, Plan& plan) {
  const auto count = static_cast<double>(plan.stages.size());
  const auto unknown = std::ranges::count_if(plan.stages, [](const PlanStage& stage) { return !stage.seconds_per_token; });
  double sum = 0.0;
  double slowest = 0.0;
  double hops = 0.0;
  for (const PlanStage& stage : plan.stages) {
    const double time = unknown == 0 ? *stage.seconds_per_token : static_cast<double>(stage.read_per_token);
    sum += time;
    slowest = std::max(slowest, time);
    if (unknown == 0) hops += stage.hop_seconds.value_or(0.0);
  }
  if (slowest > 0.0) {
    plan.bubble_full = 1.0 - sum / (count * slowest);
    plan.bubble_alone = 1.0 - sum / (count * (sum + hops));
    if (unknown == 0) plan.tokens_per_second = 1.0 / (sum + hops);
  }
  if (unknown > 0 && options.balance != PlanBalance::memory && options.layers.empty())
    plan.warnings.push_back(fmt::format("the bandwidth of {} is not known: {:.0f} GB/s assumed for the balance",
                                        unknown == std::ssize(plan.stages) ? "the nodes" : "some nodes",
                                        kAssumedBandwidth / 1e9));
  for (const PlanStage& stage : plan.stages)
    if (unknown == 0 && stage.hop_seconds.value_or(0.0) > slowest)
      plan.warnings.push_back(
          fmt::format("the hop before layer {} takes {:.3f} ms a token, longer than any stage: the link dominates",
                      stage.layers.end, 1000.0 * *stage.hop_seconds));
}

void check_ends(const PlanModel& model, const std::vector<int64_t>& budgets) {
  if (budgets.empty()) return;
  if (model.embedding > budgets.front())
    fail(ErrorKind::plan_impossible, kPlace, "P11: the embedding alone needs {} bytes, stage 0 has {}",
         with_commas(model.embedding), with_commas(budgets.front()));
  const int64_t head = model.head + (model.tied && budgets.size() > 1 ? model.embedding : 0);
  if (head > budgets.back())
    fail(ErrorKind::plan_impossible, kPlace, "P11: the head alone needs {} bytes, stage {} has {}", with_commas(head),
         budgets.size() - 1, with_commas(budgets.back()));
}

void name_shards(const PlanModel& model, PlanStage& stage) {
  std::set<int64_t> shards;
  const auto take = [&](const std::vector<int64_t>& some) { shards.insert(some.begin(), some.end()); };
  for (int64_t l = stage.layers.begin.value; l < stage.layers.end.value; ++l) take(model.layers[static_cast<size_t>(l)].shards);
  const bool last = stage.layers.end.value == model.layer_count();
  if (stage.layers.begin.value == 0 || (last && model.tied)) take(model.first_shards);
  if (last) take(model.last_shards);
  for (const int64_t shard : shards) stage.shards.push_back(model.shard_names[static_cast<size_t>(shard)]);
}

void count_kinds(const PlanModel& model, PlanStage& stage) {
  for (int64_t l = stage.layers.begin.value; l < stage.layers.end.value; ++l) {
    const std::string& kind = model.layers[static_cast<size_t>(l)].kind;
    const auto found = std::ranges::find(stage.kinds, kind, &std::pair<std::string, int64_t>::first);
    if (found == stage.kinds.end())
      stage.kinds.emplace_back(kind, 1);
    else
      ++found->second;
  }
}

}  // namespace

std::string_view to_string(PlanBalance balance) {
  switch (balance) {
    case PlanBalance::memory: return "memory";
    case PlanBalance::compute: return "compute";
    case PlanBalance::latency: return "latency";
  }
  return "";
}

PlanBalance parse_balance(std::string_view text) {
  for (const PlanBalance balance : {PlanBalance::memory, PlanBalance::compute, PlanBalance::latency})
    if (text == to_string(balance)) return balance;
  fail(ErrorKind::bad_input, kPlace, "balance: wanted memory, compute or latency, found '{}'", text);
}

int64_t Plan::used() const {
  int64_t sum = process.value_or(0);
  for (const PlanStage& stage : stages) sum += stage.used();
  return sum;
}

Plan make_plan(const PlanModel& model, const PlanOptions& options) {
  check_options(model, options);
  Plan plan;
  plan.layer_count = model.layer_count();
  plan.estimated = model.estimated;
  plan.balance = options.balance;
  int64_t weights = model.embedding + model.head;
  for (const PlanModel::Layer& layer : model.layers) weights += layer.weights;
  plan.profile = options.profile.value_or(weights < kExactBelow ? ops::Profile::exact : ops::Profile::bf16);

  const Pricer pricer(model, options, plan.profile);
  std::vector<LayerRange> ranges;
  std::vector<int64_t> budgets;
  if (!options.layers.empty()) {
    ranges = parse_layer_ranges(options.layers, model.layer_count(), options.stages);
    budgets = budgets_for(options, std::ssize(ranges));
    check_counts(options, std::ssize(ranges));
    check_ends(model, budgets);
  } else {
    const int64_t stages = options.stages.value_or(std::max<int64_t>(1, static_cast<int64_t>(options.node_memory.size())));
    if (stages > model.layer_count())
      fail(ErrorKind::plan_impossible, kPlace, "P10: {} stages for {} layers; wanted at most one stage per layer", stages,
           model.layer_count());
    budgets = budgets_for(options, stages);
    check_ends(model, budgets);
    check_counts(options, stages);
    ranges = best_split(model, pricer, options, stages, budgets);
  }
  bool fits = true;
  for (size_t s = 0; s < ranges.size(); ++s) {
    PlanStage stage = pricer.price(ranges[s]);
    if (!budgets.empty()) stage.budget = budgets[s];
    if (!options.nodes.empty()) stage.node = options.nodes[s];
    if (const std::optional<double> bandwidth = bandwidth_of(options, static_cast<int64_t>(s)))
      stage.seconds_per_token = static_cast<double>(stage.read_per_token) / *bandwidth;
    if (options.link && s + 1 < ranges.size()) stage.hop_seconds = hop_seconds(*options.link, stage.boundary_bytes);
    fits = fits && stage.shortfall() == 0;
    count_kinds(model, stage);
    name_shards(model, stage);
    plan.weights += stage.weights;
    plan.read_per_token += stage.read_per_token;
    plan.stages.push_back(std::move(stage));
  }
  if (!fits) refuse(model, plan, pricer, options);
  if (options.memory) keep_experts(model, options, pricer, plan);
  plan.warnings = options.warnings;
  predict_times(options, plan);

  const auto [least, most] = std::ranges::minmax(plan.stages, {}, &PlanStage::used);
  plan.imbalance = least.used() > 0 ? static_cast<double>(most.used()) / static_cast<double>(least.used()) : 1.0;
  if (plan.imbalance > kImbalanceWarning)
    plan.warnings.push_back(fmt::format("imbalance {:.2f}: the largest stage holds more than {} times the smallest",
                                        plan.imbalance, kImbalanceWarning));
  if (plan.estimated) plan.warnings.emplace_back("sizes are estimated from config.json; no shard headers were read");
  return plan;
}

std::vector<LayerRange> parse_layer_ranges(std::string_view spec, std::optional<int64_t> known_layers,
                                           std::optional<int64_t> stages) {
  constexpr int64_t kMostLayers = 1LL << 40;  // keeps sums in range
  const int64_t layer_count = known_layers.value_or(kMostLayers);
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string text;
  for (size_t at = 0; at < spec.size(); ++at) {
    if (is_blank(spec[at])) continue;
    if (at > 0 && is_blank(spec[at - 1]) && is_digit(spec[at]) && !text.empty() && is_digit(text.back()))
      fail(ErrorKind::bad_input, kPlace, "P02: wanted ranges like 0-3,4-7, found a blank between the digits of '{}'", spec);
    text += spec[at];
  }
  if (text.empty()) fail(ErrorKind::bad_input, kPlace, "P01: empty layer specification");
  const bool counts = text.find('+') != std::string::npos;
  const char separator = counts ? '+' : ',';

  const auto number = [](std::string_view digits) -> std::optional<int64_t> {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() || digits[0] == '-') return std::nullopt;
    return value;
  };
  std::vector<LayerRange> ranges;
  int64_t expected = 0;
  for (size_t begin = 0, position = 1; begin <= text.size(); ++position) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    const std::string_view item = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    int64_t from = expected;
    int64_t to = 0;
    if (counts) {
      const std::optional<int64_t> count = number(item);
      if (!count) fail(ErrorKind::bad_input, kPlace, "P02: item {}: wanted a layer count, found '{}'", position, item);
      if (*count < 1) fail(ErrorKind::bad_input, kPlace, "P03: item {}: wanted 1 or more layers, found {}", position, *count);
      if (*count > layer_count - expected)
        fail(ErrorKind::bad_input, kPlace, "P04: item {}: the counts go beyond the {} layers of the model", position,
             layer_count);
      to = from + *count - 1;
    } else {
      const size_t dash = item.find('-');
      const std::optional<int64_t> first = number(item.substr(0, dash));
      const std::optional<int64_t> last = dash == std::string_view::npos ? first : number(item.substr(dash + 1));
      if (!first || !last)
        fail(ErrorKind::bad_input, kPlace, "P02: item {}: wanted a range like 0-3, found '{}'", position, item);
      from = *first;
      to = *last;
      if (from > to) fail(ErrorKind::bad_input, kPlace, "P03: item {}: start {} is after end {}", position, from, to);
      if (to >= layer_count)
        fail(ErrorKind::bad_input, kPlace, "P04: item {}: layer {} is beyond the last of {} layers", position, to, layer_count);
      if (from != expected)
        fail(ErrorKind::bad_input, kPlace, "P05: item {}: gap or overlap, wanted start {}, found {}", position, expected, from);
    }
    ranges.push_back({LayerIndex(from), LayerIndex(to + 1)});
    expected = to + 1;
  }
  if (known_layers && expected != layer_count)
    fail(ErrorKind::bad_input, kPlace, "P06: the last range ends at layer {}, wanted {}", expected - 1, layer_count - 1);
  if (stages && *stages != static_cast<int64_t>(ranges.size()))
    fail(ErrorKind::bad_input, kPlace, "P07: wanted {} ranges (pp-size), found {}", *stages, ranges.size());
  return ranges;
}

int64_t parse_memory(std::string_view text, std::string_view name) {
  const auto refuse_text = [&] {
    const std::string_view place = name.starts_with("--") ? "command line" : kPlace;
    fail(ErrorKind::bad_input, place, "{}: wanted a size like 512GiB, found '{}'", name, shortened(text));
  };
  std::string_view rest = text;
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, std::chars_format::fixed);
  if (error != std::errc()) refuse_text();
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  int shift = 0;
  if (!rest.empty() && rest != "B") {
    const size_t unit = std::string_view("KMGT").find(rest.front());
    const std::string_view tail = rest.substr(1);
    if (unit == std::string_view::npos || (!tail.empty() && tail != "B" && tail != "iB")) refuse_text();
    shift = 10 * (static_cast<int>(unit) + 1);
  }
  const double bytes = std::ldexp(value, shift);
  if (!(bytes >= 1.0 && bytes < 0x1p62)) refuse_text();
  return static_cast<int64_t>(bytes);
}

std::vector<int64_t> parse_memory_list(std::string_view text, std::string_view name) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    sizes.push_back(parse_memory(text.substr(begin, end - begin), name));
    begin = end + 1;
  }
  return sizes;
}

}  // namespace weft
