// Speed of the CPU operators at K3's shapes. GB/s count weight (or state) bytes read once per call; GFLOP/s count two per
// multiply-add.
//
//     cmake --build --preset release --target weft_ops_bench && build/release/bench/weft_ops_bench
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/worker_pool.h"
#include "ops/cpu/dense.h"
#include "ops/ops.h"
#include "parallel/communicator.h"
#include "tensor/tensor.h"

namespace weft::ops {
namespace {

struct BenchContext {
  explicit BenchContext(int threads) : pool(threads) {
    context.pool = &pool;
    context.comm = &comm;
  }
  WorkerPool pool;
  SingleRank comm;
  Context context;
};

Tensor filled(const Shape& shape) {
  Tensor tensor = Tensor::zeros(DType::f32, shape);
  uint32_t state = 1;
  for (float& value : tensor.as<float>()) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
  }
  return tensor;
}

// More bytes than the caches hold: consecutive calls take consecutive copies.
class Weights {
 public:
  Weights(WeightFormat format, int64_t out, int64_t in) : shape_{format, out, in, nullptr, nullptr} {
    constexpr int64_t kSweep = 256 << 20;
    copies_ = std::max<int64_t>(1, kSweep / shape_.bytes());
    const int64_t elements = out * in;
    data_bytes_ = format == WeightFormat::f32 ? elements * 4 : format == WeightFormat::bf16 ? elements * 2 : elements / 2;
    data_.resize(static_cast<size_t>(copies_ * data_bytes_));
    scales_.resize(format == WeightFormat::mxfp4 ? static_cast<size_t>(copies_ * elements / 32) : 1, std::byte{124});
    uint32_t state = 1;
    for (size_t i = 0; i < data_.size(); ++i) {
      state = state * 1664525U + 1013904223U;
      // The high byte of a bf16 value stays near 1, so that sums stay finite.
      data_[i] = format == WeightFormat::bf16 && i % 2 == 1 ? std::byte{0x3c} : static_cast<std::byte>(state >> 24);
    }
  }
  [[nodiscard]] WeightView next() {
    WeightView view = shape_;
    view.data = data_.data() + at_ * data_bytes_;
    view.scales = scales_.data() + (shape_.format == WeightFormat::mxfp4 ? at_ * shape_.out * (shape_.in / 32) : 0);
    at_ = (at_ + 1) % copies_;
    return view;
  }
  [[nodiscard]] int64_t bytes() const { return shape_.bytes(); }

 private:
  WeightView shape_;
  int64_t copies_ = 0;
  int64_t data_bytes_ = 0;
  int64_t at_ = 0;
  std::vector<std::byte> data_;
  std::vector<std::byte> scales_;
};

void report(benchmark::State& state, int64_t bytes, double operations) {
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes) * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(operations * calls * 1e-9, benchmark::Counter::kIsRate);
  state.SetLabel(cpu::dispatch_target());
}

// Arguments: format, out, in, rows, threads.
void linear_bench(benchmark::State& state) {
  const auto format = static_cast<WeightFormat>(state.range(0));
  const int64_t out = state.range(1);
  const int64_t in = state.range(2);
  const int64_t rows = state.range(3);
  BenchContext bench(static_cast<int>(state.range(4)));
  Weights weights(format, out, in);
  const Tensor x = filled({rows, in});
  Tensor y = Tensor::zeros(DType::f32, {rows, out});
  for (auto _ : state) linear(bench.context, x.view(), weights.next(), y.mutable_view());
  report(state, weights.bytes(), 2.0 * static_cast<double>(rows * out * in));
}

// Arguments: rows, threads. 96 heads of 128.
void kda_bench(benchmark::State& state) {
  const int64_t rows = state.range(0);
  constexpr int64_t kHeads = 96;
  constexpr int64_t kSize = 128;
  BenchContext bench(static_cast<int>(state.range(1)));
  const Tensor q = filled({rows, kHeads * kSize});
  Tensor g = filled({rows, kHeads * kSize});
  for (float& value : g.as<float>()) value = -0.5F - value;
  const Tensor beta = filled({rows, kHeads});
  Tensor memory = Tensor::zeros(DType::f32, {kHeads, kSize, kSize});
  Tensor o = Tensor::zeros(DType::f32, {rows, kHeads * kSize});
  const StateSegment segment{0, rows, memory.as<float>().data(), memory.as<float>().data()};
  for (auto _ : state) {
    kda_recurrence(bench.context, q.view(), q.view(), q.view(), g.view(), beta.view(), {&segment, 1}, o.mutable_view());
  }
  report(state, memory.bytes(), 7.0 * static_cast<double>(rows * kHeads * kSize * kSize));
}

// Arguments: rows, context length, threads. K3's 96 heads, latent 512 + 64.
void mla_bench(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t length = state.range(1);
  const MlaShape shape{96, 128, 64, 128, 512};
  BenchContext bench(static_cast<int>(state.range(2)));
  const Tensor q = filled({rows, shape.heads * (shape.nope + shape.rope)});
  const Tensor ql = filled({rows, shape.heads * shape.latent});
  Tensor lat = Tensor::zeros(DType::f32, {rows, shape.heads * shape.latent});
  Tensor cache = filled({length, shape.latent + shape.rope});
  std::vector<float*> pages;
  for (int64_t i = 0; i < length / kPageTokens; ++i) {
    pages.push_back(cache.as<float>().data() + i * kPageTokens * (shape.latent + shape.rope));
  }
  const PagedSegment segment{0, rows, length - rows, pages};
  for (auto _ : state) mla_attention(bench.context, shape, q.view(), ql.view(), {&segment, 1}, lat.mutable_view());
  report(state, cache.bytes(), 2.0 * static_cast<double>(rows * shape.heads * length * (2 * shape.latent + shape.rope)));
}

void register_all() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::vector<std::pair<const char*, WeightFormat>> formats = {{"bf16", WeightFormat::bf16},
                                                                     {"mxfp4", WeightFormat::mxfp4}};
  for (const auto& [name, format] : formats) {
    // bf16: a projection of KDA; mxfp4: w1 of an expert.
    const int64_t out = format == WeightFormat::bf16 ? 12288 : 3072;
    const int64_t in = format == WeightFormat::bf16 ? 7168 : 3584;
    for (const int64_t rows : {1, 4, 64}) {
      for (const int threads : {1, cores}) {
        benchmark::RegisterBenchmark(fmt::format("linear/{}/{}x{}/rows {}/threads {}", name, out, in, rows, threads).c_str(),
                                     linear_bench)
            ->Args({static_cast<int64_t>(format), out, in, rows, threads})
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  for (const int64_t rows : {1, 64}) {
    benchmark::RegisterBenchmark(fmt::format("kda_recurrence/96x128/rows {}/threads {}", rows, cores).c_str(), kda_bench)
        ->Args({rows, cores})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  for (const int64_t rows : {1, 16}) {
    benchmark::RegisterBenchmark(fmt::format("mla_attention/96 heads/rows {}/length 4096/threads {}", rows, cores).c_str(),
                                 mla_bench)
        ->Args({rows, 4096, cores})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace weft::ops

int main(int argc, char** argv) {
  weft::ops::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
