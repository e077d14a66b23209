#include "engine/bench/gpu.h"

#include <algorithm>

#include "base/units.h"
#include "base/worker_pool.h"
#include "engine/bench/timing.h"
#include "ops/suite/device_operands.h"
#include "parallel/communicator.h"
#include "tensor/device.h"
#include "tensor/workspace.h"

namespace weft::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kCopyBytes = 2LL << 30;
constexpr int64_t kRotatedBytes = 512LL << 20;  // several times the second-level cache of an H200
constexpr int64_t kMostCopies = 24;
constexpr int kCalls = 24;                     // of a measurement
constexpr int64_t kOperandBytes = 16LL << 30;  // planned for the copies of a case's operands and for scratch memory

void wait(Device& device) { device.download(nullptr, nullptr, 0); }

// GB/s of `bytes` moved by a call, `repeats` times over `calls` calls. The first round loads kernels and does not count.
template <class Call>
Samples gigabytes_per_second(Device& device, int repeats, int calls, int64_t bytes, const Call& call) {
  Samples samples;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    wait(device);
    const Timer timer;
    for (int i = 0; i < calls; ++i) call(i);
    wait(device);
    const double seconds = timer.seconds() / calls;
    if (repeat > 0) samples.push_back(static_cast<double>(bytes) / kGiga / seconds);
  }
  return samples;
}

Figure copy_rate(Device& device, Workspace& memory, int repeats) {
  const Workspace::Scope scope(memory);
  const MutableTensorView from = memory.take({kCopyBytes}, DType::u8);
  const MutableTensorView to = memory.take({kCopyBytes}, DType::u8);
  device.fill_random(from.data, kCopyBytes, ~0U, 0);  // zeros are copied faster than anything else
  return {"copy within the GPU",
          "GB/s",
          gigabytes_per_second(device, repeats, 4, 2 * kCopyBytes, [&](int) { device.copy(to.data, from.data, kCopyBytes); }),
          {}};
}

}  // namespace

GpuLimit measure_gpu(int repeats) {
  const std::shared_ptr<Device> device = open_cuda_device();
  device->reserve(ByteCount(2 * kCopyBytes + (1LL << 20)));
  Workspace memory(*device);
  return {device->name(), copy_rate(*device, memory, repeats)};
}

Record bench_gpu_ops(const std::vector<ops::CaseSpec>& specs, ops::Profile profile, int repeats) {
  const std::shared_ptr<Device> device = open_cuda_device();
  device->reserve(ByteCount(kOperandBytes));
  Workspace memory(*device);
  Workspace scratch(*device);
  WorkerPool pool(1);
  SingleRank ranks;
  ops::Context context;
  context.backend = ops::Backend::cuda;
  context.profile = profile;
  context.pool = &pool;
  context.comm = &ranks;
  context.device = device.get();
  context.workspace = &scratch;

  Record record{"ops", {}, {{"gpu", device->name()}, {"profile", to_string(profile)}}, {}};
  record.figures.push_back(copy_rate(*device, memory, repeats));
  const Figure::Limit limit = record.figures.front().as_limit();
  for (const ops::CaseSpec& spec : specs) {
    const ops::Case made = spec.make(profile);
    const Workspace::Scope scope(memory);
    const int64_t copies = std::clamp<int64_t>(kRotatedBytes / std::max<int64_t>(made.bytes, 1), 1, kMostCopies);
    std::vector<ops::DeviceOperands> operands;
    for (int64_t i = 0; i < copies; ++i) operands.emplace_back(spec, made, *device, memory);
    const Samples samples = gigabytes_per_second(*device, repeats, kCalls, made.bytes, [&](int i) {
      made.call(context, operands[static_cast<size_t>(i) % operands.size()].operands());
    });
    Figure& figure = record.figures.emplace_back(Figure{spec.op + " " + spec.sizes, "GB/s", samples, limit});
    const auto bytes = static_cast<double>(made.bytes);
    figure.more = {{"bytes", bytes}, {"us", bytes / kGiga / figure.value() * 1e6}};
  }
  return record;
}

}  // namespace weft::bench
