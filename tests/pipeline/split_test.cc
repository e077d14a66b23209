// The split of layers into stages against all splits, one by one (distributed.md 3.4 and 3.7).
#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "pipeline/plan_split.h"

namespace weft {
namespace {

// The objective of a split, or nothing when it does not count.
std::optional<long double> cost_of(const SplitProblem& problem, SplitObjective objective, const std::vector<int64_t>& bounds) {
  long double cost = 0;
  for (int64_t s = 0; s < problem.stages; ++s) {
    const int64_t begin = bounds[static_cast<size_t>(s)];
    const int64_t end = bounds[static_cast<size_t>(s + 1)];
    const int64_t budget = problem.budgets.empty() ? 1 : problem.budgets[static_cast<size_t>(s)];
    const int64_t used = problem.used(begin, end);
    if (objective == SplitObjective::memory) {
      cost = std::max(cost, static_cast<long double>(used) / static_cast<long double>(budget));
      continue;
    }
    if (!problem.budgets.empty() && used > budget) return std::nullopt;
    const auto time = static_cast<long double>(problem.time(s, begin, end));
    if (objective == SplitObjective::compute)
      cost = std::max(cost, time);
    else
      cost += time + static_cast<long double>(end < problem.layers ? problem.hop(end) : 0);
  }
  return cost;
}

std::optional<std::vector<int64_t>> best_bounds(const SplitProblem& problem, SplitObjective objective) {
  using Best = std::tuple<long double, int64_t, std::vector<int64_t>>;  // cost, payload, bounds
  std::optional<Best> best;
  std::vector<int64_t> bounds = {0};
  const std::function<void()> extend = [&] {
    if (static_cast<int64_t>(bounds.size()) == problem.stages) {
      bounds.push_back(problem.layers);
      int64_t payload = 0;
      for (size_t i = 1; i + 1 < bounds.size(); ++i) payload += problem.payload(bounds[i]);
      if (const std::optional<long double> cost = cost_of(problem, objective, bounds)) {
        const Best one{*cost, payload, bounds};
        if (!best || one < *best) best = one;
      }
      bounds.pop_back();
      return;
    }
    for (int64_t cut = bounds.back() + 1; cut < problem.layers; ++cut) {
      bounds.push_back(cut);
      extend();
      bounds.pop_back();
    }
  };
  extend();
  if (!best) return std::nullopt;
  return std::get<2>(*best);
}

std::vector<LayerRange> brute_force(const SplitProblem& problem) {
  std::optional<std::vector<int64_t>> bounds = best_bounds(problem, problem.objective);
  if (!bounds) bounds = best_bounds(problem, SplitObjective::memory);
  std::vector<LayerRange> ranges;
  for (size_t i = 0; i + 1 < bounds->size(); ++i) ranges.push_back({LayerIndex((*bounds)[i]), LayerIndex((*bounds)[i + 1])});
  return ranges;
}

// Small numbers, so that ties are common.
struct RandomSplit {
  std::vector<int64_t> sizes;
  std::vector<int64_t> payloads;
  std::vector<int64_t> speeds;  // of stages
  SplitProblem problem;
};

void fill(RandomSplit& split, std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  SplitProblem& problem = split.problem;
  problem.layers = draw(1, 12);
  problem.stages = draw(1, std::min<int64_t>(problem.layers, 4));
  for (int64_t l = 0; l < problem.layers; ++l) {
    split.sizes.push_back(draw(1, 4));
    split.payloads.push_back(draw(1, 3));
  }
  for (int64_t s = 0; s < problem.stages; ++s) split.speeds.push_back(draw(1, 3));
  problem.used = [&split](int64_t a, int64_t b) {
    int64_t sum = a == 0 ? 2 : b == split.problem.layers ? 3 : 0;
    for (int64_t l = a; l < b; ++l) sum += split.sizes[static_cast<size_t>(l)];
    return sum;
  };
  problem.payload = [&split](int64_t b) { return split.payloads[static_cast<size_t>(b)]; };
  problem.time = [&split](int64_t s, int64_t a, int64_t b) {
    return split.problem.used(a, b) * split.speeds[static_cast<size_t>(s)];
  };
  problem.hop = [&split](int64_t b) { return split.payloads[static_cast<size_t>(b)] / 2; };
}

TEST(Split, EqualsBruteForce) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    RandomSplit split;
    fill(split, random);
    if (trial % 2 == 0)
      for (int64_t s = 0; s < split.problem.stages; ++s)
        split.problem.budgets.push_back(std::uniform_int_distribution<int64_t>(1, 4)(random));
    ASSERT_EQ(solve_split(split.problem), brute_force(split.problem)) << "trial " << trial;
  }
}

// Budgets from far too small to ample: none, some or all splits count.
TEST(Split, TimesEqualBruteForce) {
  std::mt19937 random(8);
  int fallbacks = 0;
  int bound = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    RandomSplit split;
    fill(split, random);
    SplitProblem& problem = split.problem;
    problem.objective = trial % 2 == 0 ? SplitObjective::compute : SplitObjective::latency;
    if (trial % 3 != 0)
      for (int64_t s = 0; s < problem.stages; ++s)
        problem.budgets.push_back(std::uniform_int_distribution<int64_t>(1, 24)(random));
    const std::vector<LayerRange> found = solve_split(problem);
    ASSERT_EQ(found, brute_force(problem)) << "trial " << trial;
    if (!best_bounds(problem, problem.objective)) ++fallbacks;
    SplitProblem unbound = problem;
    unbound.budgets.clear();
    if (found != solve_split(unbound)) ++bound;
  }
  EXPECT_GT(fallbacks, 100);
  EXPECT_GT(bound, 100);
}

// distributed.md 3.7: the remainder never goes to the device with the least slack. Equal layers; one stage has less room than
// the others, by a smaller node or by what it holds beside its layers.
TEST(Split, TheRemainderGoesWhereThereIsRoom) {
  for (int64_t stages = 2; stages <= 6; ++stages)
    for (int64_t layers = stages + 1; layers <= 32; ++layers) {
      if (layers % stages == 0) continue;
      const int64_t share = layers / stages;  // and one more somewhere
      SplitProblem problem;
      problem.layers = layers;
      problem.stages = stages;
      problem.payload = [](int64_t) { return int64_t{1}; };
      const auto largest = [](const std::vector<LayerRange>& ranges) {
        return std::ranges::max(ranges, {}, [](const LayerRange& range) { return range.size(); }).size();
      };
      for (int64_t tight = 0; tight < stages; ++tight) {
        problem.budgets.assign(static_cast<size_t>(stages), 1000);
        problem.budgets[static_cast<size_t>(tight)] = 999;
        problem.used = [](int64_t a, int64_t b) { return 10 * (b - a); };
        const std::vector<LayerRange> ranges = solve_split(problem);
        EXPECT_LE(ranges[static_cast<size_t>(tight)].size(), share) << layers << " over " << stages << ", " << tight;
        EXPECT_EQ(largest(ranges), share + 1);
      }
      problem.budgets.clear();
      problem.used = [](int64_t a, int64_t b) { return 10 * (b - a) + (a == 0 ? 1 : 0); };  // an embedding
      const std::vector<LayerRange> ranges = solve_split(problem);
      EXPECT_LE(ranges.front().size(), share) << layers << " over " << stages;
      EXPECT_EQ(largest(ranges), share + 1);
    }
}

TEST(Split, IsAFunctionOfItsInput) {
  std::mt19937 random(9);
  for (const SplitObjective objective : {SplitObjective::memory, SplitObjective::compute, SplitObjective::latency})
    for (int trial = 0; trial < 100; ++trial) {
      RandomSplit split;
      fill(split, random);
      split.problem.objective = objective;
      EXPECT_EQ(solve_split(split.problem), solve_split(split.problem));
    }
}

}  // namespace
}  // namespace weft
