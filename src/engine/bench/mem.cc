#include "engine/bench/mem.h"

#include <hwy/cache_control.h>

#include "engine/bench/timing.h"
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/bench/mem.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The sum of all values; `count` is a multiple of eight vectors.
float sum_all(const float* values, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = a;
  auto c = a;
  auto e = a;
  for (size_t i = 0; i < count; i += 8 * lanes) {
    a = hn::Add(a, hn::Add(hn::LoadU(d, values + i), hn::LoadU(d, values + i + lanes)));
    b = hn::Add(b, hn::Add(hn::LoadU(d, values + i + 2 * lanes), hn::LoadU(d, values + i + 3 * lanes)));
    c = hn::Add(c, hn::Add(hn::LoadU(d, values + i + 4 * lanes), hn::LoadU(d, values + i + 5 * lanes)));
    e = hn::Add(e, hn::Add(hn::LoadU(d, values + i + 6 * lanes), hn::LoadU(d, values + i + 7 * lanes)));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

void copy_all(const float* from, float* to, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < count; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
  hwy::FlushStream();
}

// `steps` fused multiply-adds on each of twelve vectors, enough to hide their latency; returns floating-point operations done.
double multiply_add(int64_t steps, float* result) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, 0.999F);
  const auto n = hn::Set(d, 0.001F);
  // Different values: a compiler would compute equal ones once.
  auto a = hn::Set(d, 0.01F), b = hn::Set(d, 0.02F), c = hn::Set(d, 0.03F), e = hn::Set(d, 0.04F), f = hn::Set(d, 0.05F),
       g = hn::Set(d, 0.06F), h = hn::Set(d, 0.07F), i = hn::Set(d, 0.08F), j = hn::Set(d, 0.09F), k = hn::Set(d, 0.10F),
       l = hn::Set(d, 0.11F), o = hn::Set(d, 0.12F);
  for (int64_t step = 0; step < steps; ++step) {
    a = hn::MulAdd(a, m, n);
    b = hn::MulAdd(b, m, n);
    c = hn::MulAdd(c, m, n);
    e = hn::MulAdd(e, m, n);
    f = hn::MulAdd(f, m, n);
    g = hn::MulAdd(g, m, n);
    h = hn::MulAdd(h, m, n);
    i = hn::MulAdd(i, m, n);
    j = hn::MulAdd(j, m, n);
    k = hn::MulAdd(k, m, n);
    l = hn::MulAdd(l, m, n);
    o = hn::MulAdd(o, m, n);
  }
  const auto first = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(f, g));
  const auto second = hn::Add(hn::Add(hn::Add(h, i), hn::Add(j, k)), hn::Add(l, o));
  *result = hn::GetLane(hn::SumOfLanes(d, hn::Add(first, second)));
  return 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
}

}  // namespace weft::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <atomic>

#include <unistd.h>

#include "base/plural.h"

namespace weft::bench {
namespace {

HWY_EXPORT(sum_all);
HWY_EXPORT(copy_all);
HWY_EXPORT(multiply_add);

constexpr double kGiga = 1e9;
constexpr double kLeastSeconds = 0.2;
constexpr int64_t kPiece = 1 << 20;  // bytes of a task; a multiple of eight vectors of any width

std::atomic<float> sink;  // what is computed has to be wanted

std::string with_threads(const char* what, const WorkerPool& pool) {
  return fmt::format("{}, {}", what, counted(pool.threads(), "thread"));
}

// `bytes` rounded down to whole pieces, written by the threads that will read them.
Tensor filled(WorkerPool& pool, int64_t bytes) {
  Tensor buffer = Tensor::uninitialized(DType::f32, {bytes / kPiece * kPiece / 4});
  float* const values = buffer.as<float>().data();
  pool.parallel_for(buffer.elements(), kPiece / 4,
                    [&](int64_t begin, int64_t end) { std::fill(values + begin, values + end, 1.0F); });
  return buffer;
}

}  // namespace

int64_t last_level_cache_bytes() { return std::max<int64_t>(0, ::sysconf(_SC_LEVEL3_CACHE_SIZE)); }

int64_t memory_sweep_bytes() { return std::max<int64_t>(256LL << 20, 2 * last_level_cache_bytes()); }

ReadSweep::ReadSweep(WorkerPool& pool, int64_t bytes) : pool_(pool), buffer_(filled(pool, bytes)) {}

std::string ReadSweep::name() const { return with_threads("read", pool_); }

Samples ReadSweep::rates(int repeats, double least_seconds) const {
  const float* const values = buffer_.as<float>().data();
  return bench::rates(repeats, least_seconds, static_cast<double>(buffer_.bytes()) / kGiga, [&] {
    pool_.parallel_for(buffer_.elements(), kPiece / 4, [&](int64_t begin, int64_t end) {
      sink.store(HWY_DYNAMIC_DISPATCH(sum_all)(values + begin, static_cast<size_t>(end - begin)), std::memory_order_relaxed);
    });
  });
}

Figure read_bandwidth(WorkerPool& pool, int64_t bytes, int repeats) {
  const ReadSweep sweep(pool, bytes);
  return {sweep.name(), "GB/s", sweep.rates(repeats, kLeastSeconds), {}};
}

Figure copy_bandwidth(WorkerPool& pool, int64_t bytes, int repeats) {
  const Tensor from = filled(pool, bytes);
  Tensor to = filled(pool, bytes);
  const float* const source = from.as<float>().data();
  float* const target = to.as<float>().data();
  const auto call = [&] {
    pool.parallel_for(from.elements(), kPiece / 4, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(copy_all)(source + begin, target + begin, static_cast<size_t>(end - begin));
    });
  };
  return {with_threads("copy", pool),
          "GB/s",
          rates(repeats, kLeastSeconds, 2.0 * static_cast<double>(from.bytes()) / kGiga, call),
          {}};
}

Figure peak_arithmetic(WorkerPool& pool, int repeats) {
  constexpr int64_t kSteps = 1 << 20;
  const int64_t tasks = 8LL * pool.threads();
  double operations = 0.0;  // of a task; the same in all
  const auto call = [&] {
    std::atomic<double> counted_operations = 0.0;
    pool.parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        float result = 0.0F;
        counted_operations.store(HWY_DYNAMIC_DISPATCH(multiply_add)(kSteps, &result), std::memory_order_relaxed);
        sink.store(result, std::memory_order_relaxed);
      }
    });
    operations = counted_operations.load();
  };
  call();
  return {with_threads("fused multiply-add, float32", pool),
          "GFLOP/s",
          rates(repeats, kLeastSeconds, operations * static_cast<double>(tasks) / kGiga, call),
          {}};
}

Record bench_mem(int threads, int repeats) {
  Record record{"mem", {}, {}, {}};
  const int64_t bytes = memory_sweep_bytes();
  record.facts = {{"buffer_bytes", bytes}};
  std::vector<int> counts;
  for (int count = 1; count < threads; count *= 2) counts.push_back(count);
  counts.push_back(threads);
  for (const int count : counts) {
    WorkerPool pool(count);
    record.figures.push_back(read_bandwidth(pool, bytes, repeats));
    record.figures.push_back(copy_bandwidth(pool, bytes, repeats));
    record.figures.push_back(peak_arithmetic(pool, repeats));
  }
  return record;
}

}  // namespace weft::bench

#endif  // HWY_ONCE
