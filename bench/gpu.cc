// What the CUDA operators and a decode step of the published geometry reach on a GPU, as JSON.
//
//     weft_gpu_bench ops COMMIT
//     weft_gpu_bench decode COMMIT DIR    DIR: a checkpoint's configuration and headers (weft synth --sparse); weights are made
//
// Every figure is a median over repeats with the least and the most, beside the copy bandwidth that the same run measured.
// Calls are timed back to back, several at a time; inputs rotate over more memory than the second-level cache holds.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/executor_loader.h"
#include "ops/suite/device_operands.h"
#include "parallel/communicator.h"
#include "tensor/cuda_device.h"

namespace weft {
namespace {

constexpr int kRepeats = 7;
constexpr int64_t kRotatedBytes = 512LL << 20;  // several times the cache of an H200

void wait(Device& device) { device.download(nullptr, nullptr, 0); }

// Seconds of one call: the median, least and most of kRepeats rounds of `calls` calls.
struct Seconds {
  double median = 0.0;
  double least = 0.0;
  double most = 0.0;
};
template <class Call>
Seconds measure(Device& device, int calls, const Call& call) {
  std::vector<double> rounds;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    wait(device);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call(i);
    wait(device);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (repeat > 0) rounds.push_back(took.count() / calls);  // the first loads kernels
  }
  std::ranges::sort(rounds);
  return {rounds[rounds.size() / 2], rounds.front(), rounds.back()};
}

Json figure(const std::string& name, const Seconds& seconds, int64_t bytes, double copy_rate) {
  const double rate = static_cast<double>(bytes) / seconds.median;
  return {{"name", name},
          {"bytes", bytes},
          {"microseconds", seconds.median * 1e6},
          {"least", seconds.least * 1e6},
          {"most", seconds.most * 1e6},
          {"gb_per_s", rate / 1e9},
          {"share_of_copy", rate / copy_rate}};
}

// Bytes read and written per second by copies within the device.
double copy_bandwidth(Device& device, Workspace& memory) {
  constexpr int64_t kBytes = 2LL << 30;
  const Workspace::Scope scope(memory);
  const MutableTensorView from = memory.take({kBytes}, DType::u8);
  const MutableTensorView to = memory.take({kBytes}, DType::u8);
  device.fill_random(from.data, kBytes, ~0U, 0);
  return 2.0 * static_cast<double>(kBytes) / measure(device, 4, [&](int) { device.copy(to.data, from.data, kBytes); }).median;
}

Json bench_ops() {
  CudaDevice device;
  device.reserve(ByteCount(24LL << 30));
  Workspace memory(device);
  Workspace scratch(device);
  WorkerPool pool(1);
  SingleRank comm;
  ops::Context context;
  context.backend = ops::Backend::cuda;
  context.profile = ops::Profile::bf16;
  context.pool = &pool;
  context.comm = &comm;
  context.device = &device;
  context.workspace = &scratch;
  const double copy_rate = copy_bandwidth(device, memory);
  Json figures = Json::array();
  for (const ops::CaseSpec& spec : ops::cases(ops::CaseSet::k3)) {
    const ops::Case made = spec.make(context.profile);
    const Workspace::Scope scope(memory);
    const auto copies = static_cast<size_t>(std::clamp<int64_t>(kRotatedBytes / std::max<int64_t>(made.bytes, 1), 1, 24));
    std::vector<ops::DeviceOperands> operands;
    for (size_t i = 0; i < copies; ++i) operands.emplace_back(spec, made, device, memory);
    const Seconds seconds =
        measure(device, 24, [&](int i) { made.call(context, operands[static_cast<size_t>(i) % copies].operands()); });
    figures.push_back(figure(spec.op + " " + spec.sizes, seconds, made.bytes, copy_rate));
  }
  return {{"copy_gb_per_s", copy_rate / 1e9}, {"figures", figures}};
}

Json bench_decode(const std::string& dir) {
  double copy_rate = 0.0;
  {
    CudaDevice device;
    device.reserve(ByteCount(5LL << 30));
    Workspace memory(device);
    copy_rate = copy_bandwidth(device, memory);
  }
  ModelOptions options;
  options.dir = dir;
  options.profile = ops::Profile::bf16;
  options.backend = ops::Backend::cuda;
  options.dummy_weights = true;
  options.threads = 1;
  const auto begin = std::chrono::steady_clock::now();
  const LoadedExecutor loaded = load_executor(options);
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - begin;
  Executor& executor = *loaded.executor;
  const SequenceId sequence = executor.create();
  std::vector<double> steps;
  int32_t next = 1;
  constexpr int kWarm = 8;
  constexpr int kSteps = 64;
  for (int i = 0; i < kWarm + kSteps; ++i) {
    Step step;
    Rows& rows = step.rows.emplace_back();
    rows.sequence = sequence;
    rows.ids = {next};
    rows.sample = SampleRequest{};
    rows.sample->params.seed = 1;
    const auto from = std::chrono::steady_clock::now();
    next = executor.run(std::move(step)).front().sampled.value().id;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
    if (i >= kWarm) steps.push_back(took.count());
  }
  std::ranges::sort(steps);
  const Seconds seconds{steps[steps.size() / 2], steps.front(), steps.back()};
  return {{"copy_gb_per_s", copy_rate / 1e9},
          {"load_seconds", load.count()},
          {"weight_bytes", loaded.weight_bytes.value},
          {"layers", executor.layer_count()},
          {"figures", Json::array({figure("decode, one token", seconds, executor.bytes_per_token().value, copy_rate)})}};
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 2 || (words[0] == "decode") != (words.size() == 3) || (words[0] != "ops" && words[0] != "decode")) {
    std::cerr << "wanted: ops COMMIT, or decode COMMIT DIR\n";
    return 2;
  }
  Json result = words[0] == "ops" ? bench_ops() : bench_decode(words[2]);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "properties");
  result["machine"] = properties.name;
  result["commit"] = words[1];
  std::string command = "weft_gpu_bench";
  for (const std::string& word : words) command += " " + word;
  result["command"] = command;
  result["repeats"] = kRepeats;
  std::cout << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
