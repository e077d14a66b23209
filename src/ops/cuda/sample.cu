#include <algorithm>
#include <map>
#include <vector>

#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda.h"
#include "ops/cuda/tables.h"
#include "ops/philox.h"
#include "ops/sample.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

// Probabilities are whole numbers of 2^-44 of the most likely candidate's, so that sums over any threads are exact and the draw
// does not depend on their order. The scalar reference sums doubles; the two agree but for draws within 1e-7 of a border.
constexpr double kMassUnit = 0x1p44;
constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / kWarp;

struct Penalty {
  int32_t id;
  int32_t times;     // generated occurrences
  int32_t repeated;  // 1: seen in prompt or answer
  float bias;        // added before the penalties
};

// One row, in device memory.
struct RowPlan {
  float temperature, top_p, min_p, repetition, frequency, presence;
  int64_t top_k;
  double draw;               // in [0, 1)
  const Penalty* penalties;  // each id once
  int64_t penalty_count;
  const uint32_t* allowed;  // null: all
};

// Candidates whose key is above `key`, and the first `ties` ids of those at it.
struct Kept {
  uint32_t key = 0;
  uint64_t ties = UINT64_MAX;
};

struct Row {
  const RowPlan& plan;
  const float* adjusted;
  int64_t vocabulary;
  double max;  // of the allowed adjusted logits

  __device__ bool allowed(int64_t id) const {
    return plan.allowed == nullptr || (plan.allowed[id / 32] >> (id % 32) & 1U) != 0;
  }
  __device__ double weight(float logit) const {
    return exp((static_cast<double>(logit) - max) / static_cast<double>(plan.temperature));
  }
  __device__ uint64_t mass(float logit) const { return static_cast<uint64_t>(llrint(weight(logit) * kMassUnit)); }
};

// Ascends with the value; key_value reverses it.
__device__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0F);  // -0 and 0 are one value
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ float key_value(uint32_t key) { return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key); }

// op over all threads' values, for all of them, in a fixed order. Synchronises the block.
template <class T, class Op>
__device__ T block_reduce(T value, const Op& op) {
  __shared__ T parts[kSampleWarps];
  for (int step = kWarp / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffU, value, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = parts[0];
  for (int i = 1; i < kSampleWarps; ++i) all = op(all, parts[i]);
  return all;
}

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// The sum of the values of the threads before this one. Synchronises the block.
__device__ uint64_t sum_before(uint64_t value) {
  __shared__ uint64_t parts[kSampleWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint64_t sum = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t earlier = __shfl_up_sync(0xffffffffU, sum, step);
    if (lane >= step) sum += earlier;
  }
  __syncthreads();  // an earlier call's parts have been read
  if (lane == kWarp - 1) parts[threadIdx.x / kWarp] = sum;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarp; ++warp) sum += parts[warp];
  return sum - value;
}

// Adds to the bins of all lanes of a warp: one addition for each bin, since many lanes have the same. Bin 256 is none.
__device__ void add_to_bins(uint32_t bin, uint64_t mass, bool by_mass, uint32_t* counts, unsigned long long* masses) {
  constexpr int kHalf = 22;  // masses are at most 2^44, and 32 halves fit into 32 bits
  const unsigned same = __match_any_sync(0xffffffffU, bin);
  uint64_t sum = 0;
  if (by_mass) {
    sum = static_cast<uint64_t>(__reduce_add_sync(same, static_cast<uint32_t>(mass >> kHalf))) << kHalf;
    sum += __reduce_add_sync(same, static_cast<uint32_t>(mass) & ((1U << kHalf) - 1U));
  }
  if (bin == 256 || static_cast<int>(threadIdx.x) % kWarp != __ffs(static_cast<int>(same)) - 1) return;
  atomicAdd(&counts[bin], static_cast<uint32_t>(__popc(same)));
  if (by_mass) atomicAdd(&masses[bin], static_cast<unsigned long long>(sum));
}

// The smallest set of best candidates of `kept` that holds `count` of them (by_mass: whose mass reaches `wanted`); ties by id.
// Radix descent over the keys, eight bits at a time from the top, counting candidates and mass in each bin.
__device__ Kept select(const Row& row, const Kept& kept, uint64_t wanted, bool by_mass) {
  __shared__ uint32_t counts[256];
  __shared__ unsigned long long masses[256];
  __shared__ uint32_t prefix;
  __shared__ uint64_t above;  // count or mass of the candidates above the prefix
  __shared__ bool found;
  if (threadIdx.x == 0) prefix = 0, above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) counts[threadIdx.x] = 0, masses[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0U : ~0U << (shift + 8);
    for (int64_t first = 0; first < row.vocabulary; first += kSampleThreads) {
      const int64_t id = first + threadIdx.x;
      const float logit = id < row.vocabulary ? row.adjusted[id] : 0.0F;
      const uint32_t key = key_of(logit);
      const bool counted = id < row.vocabulary && (key > kept.key || (key == kept.key && kept.ties == UINT64_MAX)) &&
                           (key & mask) == prefix && row.allowed(id);
      if (!__any_sync(0xffffffffU, counted)) continue;
      add_to_bins(counted ? key >> shift & 255U : 256U, counted && by_mass ? row.mass(logit) : 0, by_mass, counts, masses);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      if (kept.ties != UINT64_MAX && (kept.key & mask) == prefix) {
        counts[kept.key >> shift & 255U] += static_cast<uint32_t>(kept.ties);
        masses[kept.key >> shift & 255U] += kept.ties * row.mass(key_value(kept.key));
      }
      found = false;
      for (int bin = 255; bin >= 0 && !found; --bin) {
        const uint64_t here = by_mass ? masses[bin] : counts[bin];
        if (counts[bin] > 0 && above + here >= wanted) {
          prefix |= static_cast<uint32_t>(bin) << shift;
          found = true;
        } else {
          above += here;
        }
      }
    }
    __syncthreads();
    if (!found) return kept;  // fewer candidates than wanted: all stay
  }
  Kept result{prefix, 0};
  const uint64_t missing = wanted > above ? wanted - above : 1;  // the set is never empty
  const uint64_t each = by_mass ? max(row.mass(key_value(prefix)), uint64_t{1}) : 1;
  result.ties = (missing + each - 1) / each;
  __syncthreads();
  return result;
}

// Calls body(id, mass) for the kept candidates of this thread's part of the ids, ascending, until it returns false.
// `ties_before`: candidates at kept.key among the parts of earlier threads.
template <class Body>
__device__ void for_each_kept(const Row& row, const Kept& kept, uint64_t ties_before, const Body& body) {
  const int64_t part = (row.vocabulary + kSampleThreads - 1) / kSampleThreads;
  const int64_t end = min((threadIdx.x + 1) * part, row.vocabulary);
  for (int64_t id = threadIdx.x * part; id < end; ++id) {
    if (!row.allowed(id)) continue;
    const float logit = row.adjusted[id];
    const uint32_t key = key_of(logit);
    if (key < kept.key || (key == kept.key && ties_before++ >= kept.ties)) continue;
    if (row.plan.min_p > 0.0F && row.weight(logit) < static_cast<double>(row.plan.min_p)) continue;
    if (!body(id, row.mass(logit))) return;
  }
}

// The first id at which the cumulative mass of the kept candidates, in ascending order of ids, exceeds draw * total.
__device__ int32_t draw(const Row& row, const Kept& kept) {
  __shared__ int32_t drawn;
  uint64_t ties = 0;
  const Kept all;
  for_each_kept(row, all, 0, [&](int64_t id, uint64_t) {
    ties += key_of(row.adjusted[id]) == kept.key ? 1 : 0;
    return true;
  });
  ties = sum_before(ties);
  uint64_t own = 0;
  for_each_kept(row, kept, ties, [&](int64_t, uint64_t mass) {
    own += mass;
    return true;
  });
  const uint64_t total = block_reduce(own, Sum());
  const uint64_t target = min(static_cast<uint64_t>(row.plan.draw * static_cast<double>(total)), total - 1);
  const uint64_t before = sum_before(own);
  if (before <= target && target < before + own) {
    uint64_t mass_so_far = before;
    for_each_kept(row, kept, ties, [&](int64_t id, uint64_t mass) {
      mass_so_far += mass;
      drawn = static_cast<int32_t>(id);
      return mass_so_far <= target;
    });
  }
  __syncthreads();
  return drawn;
}

// A block for a row.
__global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const float* logits, int64_t vocabulary, const RowPlan* plans, float* workspace, Sampled* out) {
  const RowPlan plan = plans[blockIdx.x];
  const float* raw = logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  float* adjusted = workspace + static_cast<int64_t>(blockIdx.x) * vocabulary;
  float max_raw = -INFINITY;
  int faults = 0;
  for (int64_t id = threadIdx.x; id < vocabulary; id += kSampleThreads) {
    adjusted[id] = raw[id];
    max_raw = fmaxf(max_raw, raw[id]);
    faults += isfinite(raw[id]) ? 0 : 1;
  }
  max_raw = block_reduce(max_raw, Max());
  if (block_reduce(faults, Sum()) > 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = {kNotFinite, NAN};
    return;
  }
  double sum = 0.0;
  for (int64_t id = threadIdx.x; id < vocabulary; id += kSampleThreads) {
    sum += exp(static_cast<double>(raw[id]) - static_cast<double>(max_raw));
  }
  const double log_sum = static_cast<double>(max_raw) + log(block_reduce(sum, Sum()));
  for (int64_t i = threadIdx.x; i < plan.penalty_count; i += kSampleThreads) {
    const Penalty penalty = plan.penalties[i];
    float& logit = adjusted[penalty.id];
    logit += penalty.bias;
    if (penalty.repeated != 0) logit = logit > 0.0F ? logit / plan.repetition : logit * plan.repetition;
    if (penalty.times > 0) logit -= static_cast<float>(penalty.times) * plan.frequency + plan.presence;
    faults += isfinite(logit) ? 0 : 1;
  }
  if (block_reduce(faults, Sum()) > 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = {kPenaltyOverflow, NAN};
    return;
  }

  Row row{plan, adjusted, vocabulary, 0.0};
  // The best by (value, then the lowest id), as one ordered number.
  uint64_t best = 0;
  for (int64_t id = threadIdx.x; id < vocabulary; id += kSampleThreads) {
    if (!row.allowed(id)) continue;
    best = max(best, static_cast<uint64_t>(key_of(adjusted[id])) << 32 | (0xffffffffU - static_cast<uint32_t>(id)));
  }
  best = block_reduce(best, Max());
  if (best == 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = {kNoneAllowed, NAN};
    return;
  }
  auto chosen = static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(best));
  if (plan.temperature > 0.0F) {
    row.max = adjusted[chosen];
    Kept kept;
    if (plan.top_k > 0) kept = select(row, kept, static_cast<uint64_t>(plan.top_k), false);
    if (plan.top_p < 1.0F) {
      uint64_t mass = 0;
      for (int64_t id = threadIdx.x; id < vocabulary; id += kSampleThreads) {
        const uint32_t key = key_of(adjusted[id]);
        const bool counted = key > kept.key || (key == kept.key && kept.ties == UINT64_MAX);
        if (counted && row.allowed(id)) mass += row.mass(adjusted[id]);
      }
      mass = block_reduce(mass, Sum());
      if (kept.ties != UINT64_MAX) mass += kept.ties * row.mass(key_value(kept.key));
      const double wanted = static_cast<double>(plan.top_p) * static_cast<double>(mass);
      kept = select(row, kept, static_cast<uint64_t>(ceil(wanted)), true);
    }
    chosen = draw(row, kept);
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = {chosen, static_cast<float>(static_cast<double>(raw[chosen]) - log_sum)};
  }
}

std::vector<Penalty> penalties(const SampleRow& row) {
  const SamplingParams& params = row.params;
  const bool repeats = params.repetition_penalty != 1.0F;
  const bool counts = params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F;
  std::map<int32_t, Penalty> found;
  for (const LogitBias& bias : row.bias) found.try_emplace(bias.id, Penalty{bias.id, 0, 0, bias.bias});
  const auto add = [&](std::span<const int32_t> ids, int32_t times) {
    for (const int32_t id : ids) {
      if (std::ranges::binary_search(row.never_penalised, id)) continue;
      Penalty& penalty = found.try_emplace(id, Penalty{id, 0, 0, 0.0F}).first->second;
      penalty.repeated = repeats ? 1 : 0;
      penalty.times += times;
    }
  };
  if (repeats) add(row.prompt, 0);
  if (repeats || counts) add(row.history, counts ? 1 : 0);
  std::vector<Penalty> made;
  for (const auto& [id, penalty] : found) made.push_back(penalty);
  return made;
}

}  // namespace

void sample(Context& context, TensorView logits, std::span<const SampleRow> rows, std::span<Sampled> out) {
  if (rows.empty()) return;
  const Workspace::Scope scope(*context.workspace);
  std::vector<RowPlan> plans;
  for (const SampleRow& row : rows) {
    const SamplingParams& params = row.params;
    const std::vector<Penalty> list = penalties(row);
    const std::span<const Penalty> list_there = device_table(context, std::span<const Penalty>(list));
    const std::span<const uint32_t> allowed = device_table(context, row.allowed);
    plans.push_back({params.temperature, params.top_p, params.min_p, params.repetition_penalty, params.frequency_penalty,
                     params.presence_penalty, params.top_k, uniform_draw(params.seed, static_cast<uint64_t>(row.position)),
                     list_there.data(), static_cast<int64_t>(list_there.size()), allowed.empty() ? nullptr : allowed.data()});
  }
  const std::span<const RowPlan> there = device_table(context, std::span<const RowPlan>(plans));
  const MutableTensorView adjusted = context.workspace->take(logits.shape);
  sample_kernel<<<static_cast<unsigned>(rows.size()), kSampleThreads, 0, stream_of(context)>>>(
      floats(logits), logits.shape[1], there.data(), floats(adjusted), out.data());
  launched("sample");
}

}  // namespace weft::ops::cuda
