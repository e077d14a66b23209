#include "engine/bench/ops.h"

#include <algorithm>
#include <set>
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

Figure time_case(const ops::CaseSpec& spec, const OpsBench& options, ops::Context& context, const Figure::Limit& bandwidth,
                 const Figure::Limit& arithmetic) {
  const ops::Case made = spec.make(options.profile);
  int64_t bytes = 0;  // of one copy
  for (const ops::CaseTensor& tensor : made.tensors) bytes += tensor.initial.bytes();
  std::vector<ops::HostOperands> copies;
  const int64_t count = 1 + memory_sweep_bytes() / std::max<int64_t>(bytes, 1);
  copies.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) copies.emplace_back(made);

  size_t next = 0;
  const Samples calls = rates(options.repeats, kLeastSeconds, 1.0, [&] {
    made.call(context, copies[next].operands());
    next = (next + 1) % copies.size();
  });
  const double gigabytes = static_cast<double>(made.bytes) / kGiga;
  const double gigaflops = made.operations / kGiga;
  const bool memory_bound = gigabytes / bandwidth.value >= gigaflops / arithmetic.value;
  Figure figure{spec.op + " " + spec.sizes, memory_bound ? "GB/s" : "GFLOP/s", calls, memory_bound ? bandwidth : arithmetic};
  for (double& sample : figure.samples) sample *= memory_bound ? gigabytes : gigaflops;
  figure.more = {{"us", 1e6 / median(calls)},
                 memory_bound ? std::pair<std::string, double>("GFLOP_per_s", median(calls) * gigaflops)
                              : std::pair<std::string, double>("GB_per_s", median(calls) * gigabytes)};
  if (memory_bound && bytes <= last_level_cache_bytes() / 2) {
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
  record.figures.push_back(read_bandwidth(pool, memory_sweep_bytes(), options.repeats));
  record.figures.push_back(peak_arithmetic(pool, options.repeats));
  const Figure::Limit bandwidth = record.figures[0].as_limit();
  const Figure::Limit arithmetic = record.figures[1].as_limit();
  for (const ops::CaseSpec& spec : specs) record.figures.push_back(time_case(spec, options, context, bandwidth, arithmetic));
  return record;
}

}  // namespace weft::bench
