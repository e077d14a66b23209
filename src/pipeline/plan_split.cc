#include "pipeline/plan_split.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();

// A share, compared without rounding: used/budget, or a time.
struct Load {
  int64_t used = 0;
  int64_t budget = 1;

  friend bool operator<(const Load& a, const Load& b) {
    return static_cast<__int128>(a.used) * b.budget < static_cast<__int128>(b.used) * a.budget;
  }
};

// What counts is first the objective, then the payloads; unreachable where no split is.
struct Sum {
  int64_t cost = kUnreachable;
  int64_t payload = 0;

  friend auto operator<=>(const Sum&, const Sum&) = default;
};

class Solver {
 public:
  explicit Solver(const SplitProblem& problem) : problem_(problem), n_(problem.layers), stages_(problem.stages) {
    used_.resize(static_cast<size_t>((n_ + 1) * (n_ + 1)), 0);
    for (int64_t a = 0; a < n_; ++a)
      for (int64_t b = a + 1; b <= n_; ++b) used_[static_cast<size_t>(a * (n_ + 1) + b)] = problem.used(a, b);
  }

  // Nothing when no split is within all budgets, where those count.
  [[nodiscard]] std::optional<std::vector<LayerRange>> solve(SplitObjective objective) const {
    if (objective == SplitObjective::latency) {
      return smallest_sum(
          [&](int64_t s, int64_t a, int64_t b) { return fits(s, a, b); },
          [&](int64_t s, int64_t a, int64_t b) { return problem_.time(s, a, b) + (b < n_ ? problem_.hop(b) : 0); });
    }
    const auto load = [&, objective](int64_t s, int64_t a, int64_t b) -> std::optional<Load> {
      if (objective == SplitObjective::memory) return Load{used(a, b), budget(s)};
      return fits(s, a, b) ? std::optional(Load{problem_.time(s, a, b), 1}) : std::nullopt;
    };
    const std::optional<Load> bound = smallest_largest(load);
    if (!bound) return std::nullopt;
    const auto allowed = [&](int64_t s, int64_t a, int64_t b) {
      const std::optional<Load> one = load(s, a, b);
      return one && !(*bound < *one);
    };
    return smallest_sum(allowed, [](int64_t, int64_t, int64_t) { return int64_t{0}; });
  }

 private:
  [[nodiscard]] int64_t used(int64_t a, int64_t b) const { return used_[static_cast<size_t>(a * (n_ + 1) + b)]; }
  [[nodiscard]] int64_t budget(int64_t s) const {
    return problem_.budgets.empty() ? 1 : problem_.budgets[static_cast<size_t>(s)];
  }
  [[nodiscard]] bool fits(int64_t s, int64_t a, int64_t b) const { return problem_.budgets.empty() || used(a, b) <= budget(s); }

  // Smallest possible largest load of all stages.
  template <class LoadOf>
  [[nodiscard]] std::optional<Load> smallest_largest(const LoadOf& load) const {
    // Of stages s.. over layers [a, n), for s from the last stage to the first.
    std::vector<std::optional<Load>> worst(static_cast<size_t>(n_ + 1));
    for (int64_t a = 0; a < n_; ++a) worst[static_cast<size_t>(a)] = load(stages_ - 1, a, n_);
    for (int64_t s = stages_ - 2; s >= 0; --s) {
      std::vector<std::optional<Load>> next(static_cast<size_t>(n_ + 1));
      const int64_t after = stages_ - 1 - s;  // stages behind this one, a layer each at least
      for (int64_t a = 0; a + after < n_; ++a)
        for (int64_t b = a + 1; b + after <= n_; ++b) {
          const std::optional<Load> one = load(s, a, b);
          const std::optional<Load>& rest = worst[static_cast<size_t>(b)];
          if (!one || !rest) continue;
          const Load larger = std::max(*one, *rest);
          std::optional<Load>& best = next[static_cast<size_t>(a)];
          if (!best || larger < *best) best = larger;
        }
      worst = std::move(next);
    }
    return worst[0];
  }

  // The split into allowed stages of the smallest sum of costs, then of payloads, then of the earliest boundaries.
  template <class Allowed, class Cost>
  [[nodiscard]] std::optional<std::vector<LayerRange>> smallest_sum(const Allowed& allowed, const Cost& cost) const {
    // Of stages s.. over [a, n).
    std::vector<std::vector<Sum>> sum(static_cast<size_t>(stages_), std::vector<Sum>(static_cast<size_t>(n_ + 1)));
    const auto through = [&](int64_t s, int64_t a, int64_t b) -> Sum {
      if (!allowed(s, a, b)) return {};
      if (s == stages_ - 1) return {cost(s, a, b), 0};
      const Sum& rest = sum[static_cast<size_t>(s + 1)][static_cast<size_t>(b)];
      return rest.cost == kUnreachable ? rest : Sum{rest.cost + cost(s, a, b), rest.payload + problem_.payload(b)};
    };
    for (int64_t a = 0; a < n_; ++a) sum.back()[static_cast<size_t>(a)] = through(stages_ - 1, a, n_);
    for (int64_t s = stages_ - 2; s >= 0; --s)
      for (int64_t a = 0; a < n_; ++a)
        for (int64_t b = a + 1; b < n_; ++b) {
          Sum& best = sum[static_cast<size_t>(s)][static_cast<size_t>(a)];
          best = std::min(best, through(s, a, b));
        }
    if (sum[0][0].cost == kUnreachable) return std::nullopt;

    std::vector<LayerRange> ranges;
    int64_t a = 0;
    for (int64_t s = 0; s + 1 < stages_; ++s) {
      int64_t b = a + 1;
      while (through(s, a, b) != sum[static_cast<size_t>(s)][static_cast<size_t>(a)]) ++b;
      ranges.push_back({LayerIndex(a), LayerIndex(b)});
      a = b;
    }
    ranges.push_back({LayerIndex(a), LayerIndex(n_)});
    return ranges;
  }

  const SplitProblem& problem_;
  int64_t n_;
  int64_t stages_;
  std::vector<int64_t> used_;  // of layers [a, b) at a * (n + 1) + b
};

}  // namespace

std::vector<LayerRange> solve_split(const SplitProblem& problem) {
  if (problem.stages < 1 || problem.stages > problem.layers ||
      (!problem.budgets.empty() && static_cast<int64_t>(problem.budgets.size()) != problem.stages))
    fail(ErrorKind::internal, "plan", "wanted 1 to {} stages with a budget each, found {} and {} budgets", problem.layers,
         problem.stages, problem.budgets.size());
  const Solver solver(problem);
  std::optional<std::vector<LayerRange>> found = solver.solve(problem.objective);
  if (!found) found = solver.solve(SplitObjective::memory);
  return std::move(found).value();
}

}  // namespace weft
