#include "pipeline/plan_split.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace weft {
namespace {

// used/budget, compared without rounding.
struct Load {
  int64_t used = 0;
  int64_t budget = 1;

  friend bool operator<(const Load& a, const Load& b) {
    return static_cast<__int128>(a.used) * b.budget < static_cast<__int128>(b.used) * a.budget;
  }
};

constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();

}  // namespace

std::vector<LayerRange> solve_split(const SplitProblem& problem) {
  const int64_t n = problem.layers;
  const int64_t stages = problem.stages;
  if (stages < 1 || stages > n || (!problem.budgets.empty() && static_cast<int64_t>(problem.budgets.size()) != stages))
    fail(ErrorKind::internal, "plan", "wanted 1 to {} stages with a budget each, found {} and {} budgets", n, stages,
         problem.budgets.size());

  // used[a][b] of layers [a, b).
  const auto at = [n](int64_t a, int64_t b) { return static_cast<size_t>(a * (n + 1) + b); };
  std::vector<int64_t> used(static_cast<size_t>((n + 1) * (n + 1)), 0);
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = a + 1; b <= n; ++b) used[at(a, b)] = problem.used(a, b);
  const auto load = [&](int64_t s, int64_t a, int64_t b) {
    return Load{used[at(a, b)], problem.budgets.empty() ? 1 : problem.budgets[static_cast<size_t>(s)]};
  };

  // Smallest possible largest load of stages s.. over layers [a, n), for s from the last stage to the first.
  std::vector<Load> worst(static_cast<size_t>(n + 1));
  for (int64_t a = 0; a < n; ++a) worst[static_cast<size_t>(a)] = load(stages - 1, a, n);
  for (int64_t s = stages - 2; s >= 0; --s) {
    std::vector<Load> next(static_cast<size_t>(n + 1));
    const int64_t after = stages - 1 - s;  // stages behind this one, a layer each at least
    for (int64_t a = 0; a + after < n; ++a) {
      bool any = false;
      for (int64_t b = a + 1; b + after <= n; ++b) {
        const Load larger = std::max(load(s, a, b), worst[static_cast<size_t>(b)]);
        if (!any || larger < next[static_cast<size_t>(a)]) next[static_cast<size_t>(a)] = larger;
        any = true;
      }
    }
    worst = std::move(next);
  }
  const Load bound = worst[0];

  // Smallest sum of payloads of stages s.. over [a, n) whose loads all stay within the bound.
  std::vector<std::vector<int64_t>> sum(static_cast<size_t>(stages),
                                        std::vector<int64_t>(static_cast<size_t>(n + 1), kUnreachable));
  for (int64_t a = 0; a < n; ++a)
    if (!(bound < load(stages - 1, a, n))) sum.back()[static_cast<size_t>(a)] = 0;
  const auto through = [&](int64_t s, int64_t a, int64_t b) {
    const int64_t rest = sum[static_cast<size_t>(s + 1)][static_cast<size_t>(b)];
    return rest == kUnreachable || bound < load(s, a, b) ? kUnreachable : rest + problem.payload(b);
  };
  for (int64_t s = stages - 2; s >= 0; --s)
    for (int64_t a = 0; a < n; ++a)
      for (int64_t b = a + 1; b < n; ++b) {
        int64_t& best = sum[static_cast<size_t>(s)][static_cast<size_t>(a)];
        best = std::min(best, through(s, a, b));
      }

  std::vector<LayerRange> ranges;
  int64_t a = 0;
  for (int64_t s = 0; s + 1 < stages; ++s) {
    int64_t b = a + 1;
    while (through(s, a, b) != sum[static_cast<size_t>(s)][static_cast<size_t>(a)]) ++b;
    ranges.push_back({LayerIndex(a), LayerIndex(b)});
    a = b;
  }
  ranges.push_back({LayerIndex(a), LayerIndex(n)});
  return ranges;
}

}  // namespace weft
