#include "ops/reference/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/philox.h"

namespace weft::ops::reference {
namespace {

struct Candidate {
  int32_t id = 0;
  double weight = 0.0;  // probability up to a common factor; the best candidate of the row has weight 1
};

bool more_likely(const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; }

bool is_allowed(const SampleRow& row, size_t id) {
  return row.allowed.empty() || ((row.allowed[id / 32] >> (id % 32)) & 1U) != 0;
}

void check_finite(int64_t index, std::span<const float> logits) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      fail(ErrorKind::bad_checkpoint, "sample", "row {}, id {}: wanted a finite logit, found {}", index, id, logits[id]);
    }
  }
}

// A repetition penalty near 0 can push a finite logit beyond float32.
void check_penalised(int64_t index, std::span<const float> logits, const SamplingParams& params) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return;
  fail(ErrorKind::bad_input, "sample",
       "row {}: wanted finite logits after the penalties, found overflow by repetition_penalty {}", index,
       params.repetition_penalty);
}

// Calls body(id, times) for each id of `ids` that may be penalised.
template <class Body>
void for_each_count(std::vector<int32_t>& ids, std::span<const int32_t> exempt, const Body& body) {
  std::ranges::sort(ids);
  for (size_t i = 0; i < ids.size();) {
    size_t end = i;
    while (end < ids.size() && ids[end] == ids[i]) ++end;
    if (!std::ranges::binary_search(exempt, ids[i])) body(static_cast<size_t>(ids[i]), end - i);
    i = end;
  }
}

void penalise(const SampleRow& row, std::vector<float>& logits) {
  const SamplingParams& params = row.params;
  std::vector<int32_t> ids;
  if (params.repetition_penalty != 1.0F) {
    ids.assign(row.prompt.begin(), row.prompt.end());
    ids.insert(ids.end(), row.history.begin(), row.history.end());
    for_each_count(ids, row.never_penalised, [&](size_t id, size_t) {
      logits[id] = logits[id] > 0.0F ? logits[id] / params.repetition_penalty : logits[id] * params.repetition_penalty;
    });
  }
  if (params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F) {
    ids.assign(row.history.begin(), row.history.end());
    for_each_count(ids, row.never_penalised, [&](size_t id, size_t times) {
      logits[id] -= static_cast<float>(times) * params.frequency_penalty + params.presence_penalty;
    });
  }
}

// Keeps the `count` most likely, sorted.
void keep_best(std::vector<Candidate>& candidates, size_t count) {
  count = std::min(count, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(count), candidates.end(), more_likely);
  candidates.resize(count);
}

// The smallest set of most likely candidates whose mass reaches p; the one that crosses stays. Sorts in growing parts, since
// the set is small for most rows of a large vocabulary.
void keep_mass(std::vector<Candidate>& candidates, double p) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  double mass = 0.0;
  size_t sorted = 0;
  for (size_t part = 256; sorted < candidates.size(); part *= 4) {
    const auto begin = candidates.begin() + static_cast<int64_t>(sorted);
    const auto end = candidates.begin() + static_cast<int64_t>(std::min(sorted + part, candidates.size()));
    std::partial_sort(begin, end, candidates.end(), more_likely);
    for (auto at = begin; at != end; ++at) {
      mass += at->weight;
      if (mass >= p * total) {
        candidates.erase(at + 1, candidates.end());
        return;
      }
    }
    sorted = static_cast<size_t>(end - candidates.begin());
  }
}

int32_t draw(std::vector<Candidate>& candidates, uint64_t seed, int64_t position) {
  std::ranges::sort(candidates, {}, &Candidate::id);
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const double target = uniform_draw(seed, static_cast<uint64_t>(position)) * total;
  double mass = 0.0;
  int32_t last = candidates.front().id;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight <= 0.0) continue;
    last = candidate.id;
    mass += candidate.weight;
    if (target < mass) return last;
  }
  return last;
}

}  // namespace

void weigh(std::span<const float> logits, double max, double temperature, std::span<double> weights) {
  for (size_t i = 0; i < logits.size(); ++i) weights[i] = std::exp((static_cast<double>(logits[i]) - max) / temperature);
}

double log_sum_exp(std::span<const float> logits, Weigh* weigh) {
  thread_local std::vector<double> weights;
  const double max = *std::ranges::max_element(logits);
  weights.resize(logits.size());
  weigh(logits, max, 1.0, weights);
  double sum = 0.0;
  for (const double weight : weights) sum += weight;
  return max + std::log(sum);
}

Sampled sample_row(int64_t index, std::span<const float> logits, const SampleRow& row, Weigh* weigh) {
  check_finite(index, logits);
  const SamplingParams& params = row.params;
  thread_local std::vector<float> adjusted;
  adjusted.assign(logits.begin(), logits.end());
  for (const LogitBias& bias : row.bias) adjusted[static_cast<size_t>(bias.id)] += bias.bias;
  penalise(row, adjusted);
  check_penalised(index, adjusted, params);

  size_t best = adjusted.size();
  for (size_t id = 0; id < adjusted.size(); ++id) {
    if (is_allowed(row, id) && (best == adjusted.size() || adjusted[id] > adjusted[best])) best = id;
  }
  if (best == adjusted.size()) fail(ErrorKind::internal, "sample", "row {}: wanted at least one allowed id, found none", index);

  auto chosen = static_cast<int32_t>(best);
  thread_local std::vector<double> weights;
  if (params.temperature > 0.0F) {
    thread_local std::vector<Candidate> candidates;
    candidates.clear();
    weights.resize(adjusted.size());
    weigh(adjusted, adjusted[best], static_cast<double>(params.temperature), weights);
    for (size_t id = 0; id < adjusted.size(); ++id) {
      if (is_allowed(row, id)) candidates.push_back({static_cast<int32_t>(id), weights[id]});
    }
    if (params.top_k > 0) keep_best(candidates, static_cast<size_t>(params.top_k));
    if (params.top_p < 1.0F) keep_mass(candidates, static_cast<double>(params.top_p));
    if (params.min_p > 0.0F) {
      std::erase_if(candidates, [&](const Candidate& c) { return c.weight < static_cast<double>(params.min_p); });
    }
    chosen = draw(candidates, params.seed, row.position);
  }
  const double logprob = static_cast<double>(logits[static_cast<size_t>(chosen)]) - log_sum_exp(logits, weigh);
  return {chosen, static_cast<float>(logprob)};
}

}  // namespace weft::ops::reference
