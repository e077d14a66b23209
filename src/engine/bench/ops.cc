#include "engine/bench/ops.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/worker_pool.h"
#include "engine/bench/gpu.h"
#include "engine/bench/mem.h"
#include "engine/bench/timing.h"
#include "ops/suite/suite.h"
#include "parallel/communicator.h"

namespace weft::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr double kLeastSeconds = 0.05;  // of a repeat

// What the machine allows. Bandwidth changes within a run where the machine is shared, so that a case that memory limits is
// compared with reads that are timed in turn with it.
struct Limits {
  Limits(WorkerPool& pool, int repeats)
      : sweep(pool, memory_sweep_bytes()),
        read{sweep.name(), "GB/s", sweep.rates(repeats, kLeastSeconds), {}},
        arithmetic(peak_arithmetic(pool, repeats)) {}
  ReadSweep sweep;
  Figure read;
  Figure arithmetic;
};

// Samples of `call` times `amount`, and beside each one of the sweep.
std::pair<Samples, Samples> in_turn(const ReadSweep& sweep, int repeats, double amount, const std::function<void()>& call) {
  std::pair<Samples, Samples> both;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    both.second.push_back(sweep.rates(1, kLeastSeconds).front());
    both.first.push_back(rates(1, kLeastSeconds, amount, call).front());
  }
  return both;
}

Figure time_case(const ops::CaseSpec& spec, const OpsBench& options, ops::Context& context, const Limits& limits) {
  const ops::Case made = spec.make(options.profile);
  int64_t bytes = 0;  // of one copy
  for (const ops::CaseTensor& tensor : made.tensors) bytes += tensor.initial.bytes();
  std::vector<ops::HostOperands> copies;
  const int64_t count = 1 + memory_sweep_bytes() / std::max<int64_t>(bytes, 1);
  copies.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) copies.emplace_back(made);

  size_t next = 0;
  const auto call = [&] {
    made.call(context, copies[next].operands());
    next = (next + 1) % copies.size();
  };
  const double gigabytes = static_cast<double>(made.bytes) / kGiga;
  const double gigaflops = made.operations / kGiga;
  Figure figure{spec.op + " " + spec.sizes, "GFLOP/s", {}, limits.arithmetic.as_limit()};
  if (gigabytes / limits.read.value() < gigaflops / limits.arithmetic.value()) {
    figure.samples = rates(options.repeats, kLeastSeconds, gigaflops, call);
    figure.more = {{"us", 1e6 * gigaflops / figure.value()}, {"GB_per_s", figure.value() * gigabytes / gigaflops}};
    return figure;
  }
  auto [samples, read] = in_turn(limits.sweep, options.repeats, gigabytes, call);
  const auto [least, most] = std::ranges::minmax(read);
  figure = {figure.name, "GB/s", std::move(samples),
            Figure::Limit{limits.sweep.name() + ", in turn with it", median(std::move(read))}};
  figure.more = {{"us", 1e6 * gigabytes / figure.value()},
                 {"GFLOP_per_s", figure.value() * gigaflops / gigabytes},
                 {"limit_least", least},
                 {"limit_most", most}};
  if (bytes <= last_level_cache_bytes() / 2) {
    const Samples cached = rates(options.repeats, kLeastSeconds, gigabytes, [&] { made.call(context, copies[0].operands()); });
    figure.more.emplace_back("GB_per_s_from_cache", median(cached));
  }
  return figure;
}

}  // namespace

Record bench_ops(const OpsBench& options) {
  std::vector<ops::CaseSpec> specs = ops::cases(ops::CaseSet::k3);
  if (!options.op.empty()) {
    std::set<std::string> known;
    for (const ops::CaseSpec& spec : specs) known.insert(spec.op);
    if (!known.contains(options.op))
      fail(ErrorKind::bad_input, "bench", "operator: wanted one of {}, found '{}'", fmt::join(known, ", "), options.op);
    std::erase_if(specs, [&](const ops::CaseSpec& spec) { return spec.op != options.op; });
  }
  if (options.gpu) return bench_gpu_ops(specs, options.profile, options.repeats);
  WorkerPool pool(options.threads);
  SingleRank ranks;
  ops::Context context;
  context.profile = options.profile;
  context.pool = &pool;
  context.comm = &ranks;

  Record record{"ops", {}, {}, {}};
  record.facts = {{"threads", options.threads}, {"profile", to_string(options.profile)}};
  const Limits limits(pool, options.repeats);
  record.figures = {limits.read, limits.arithmetic};
  for (const ops::CaseSpec& spec : specs) record.figures.push_back(time_case(spec, options, context, limits));
  return record;
}

}  // namespace weft::bench
