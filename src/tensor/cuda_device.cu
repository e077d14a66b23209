#include <algorithm>
#include <cstring>

#include "tensor/built_with_cuda.h"
#include "tensor/cuda_device.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "cuda";
constexpr int64_t kAlignment = 256;
constexpr int64_t kStagingBytes = 8LL << 20;

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {
    check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "graph");
  }
  ~CudaGraph() override {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch() override { check_cuda(cudaGraphLaunch(executable_, stream_), "graph launch"); }

 private:
  cudaGraph_t graph_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// Words [0, count): the output function of splitmix64 over the address, so that equal tensors differ.
__global__ void fill_kernel(uint32_t* to, int64_t count, uint32_t keep, uint32_t set) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t z = reinterpret_cast<uint64_t>(to + i) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    to[i] = (static_cast<uint32_t>(z >> 32) & keep) | set;
  }
}

}  // namespace

void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  const auto kind = status == cudaErrorMemoryAllocation ? ErrorKind::unavailable : ErrorKind::internal;
  fail(kind, kPlace, "{}: wanted success, found: {}", what, cudaGetErrorString(status));
}

std::shared_ptr<Device> open_cuda_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail(ErrorKind::unavailable, kPlace, "wanted a GPU and its driver, found: {}",
         status != cudaSuccess ? cudaGetErrorString(status) : "no GPU");
  }
  return std::make_shared<CudaDevice>();
}

bool built_with_cuda() { return true; }

CudaDevice::CudaDevice() {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
  for (Staging& staging : staging_) {
    check_cuda(cudaMallocHost(&staging.memory, kStagingBytes), "pinned memory");
    check_cuda(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming), "event");
  }
}

CudaDevice::~CudaDevice() {
  (void)cudaStreamSynchronize(stream_);
  for (const Staging& staging : staging_) {
    (void)cudaEventDestroy(staging.copied);
    (void)cudaFreeHost(staging.memory);
  }
  for (std::byte* memory : host_memory_) (void)cudaFreeHost(memory);
  for (const Block& block : pool_) (void)cudaFree(block.memory);
  (void)cudaStreamDestroy(stream_);
}

std::string CudaDevice::name() const {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "properties");
  return properties.name;
}

void CudaDevice::reserve(ByteCount bytes) {
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "free memory");
  if (bytes.value > static_cast<int64_t>(free)) {
    fail(ErrorKind::unavailable, kPlace, "wanted {} for weights, states and workspace, found {} free of {}",
         human_bytes(bytes.value), human_bytes(static_cast<int64_t>(free)), human_bytes(static_cast<int64_t>(total)));
  }
  Block block{nullptr, bytes.value, 0};
  check_cuda(cudaMalloc(&block.memory, static_cast<size_t>(bytes.value)), "memory");
  const std::lock_guard lock(mutex_);
  pool_.push_back(block);
}

std::byte* CudaDevice::take(ByteCount bytes) {
  const int64_t wanted = (std::max<int64_t>(bytes.value, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  int64_t left = 0;
  for (Block& block : pool_) {
    if (block.bytes - block.used >= wanted) {
      std::byte* const taken = block.memory + block.used;
      block.used += wanted;
      return taken;
    }
    left = std::max(left, block.bytes - block.used);
  }
  fail(ErrorKind::unavailable, kPlace, "wanted {} of the planned memory, found {} left", human_bytes(wanted),
       human_bytes(left));
}

ByteCount CudaDevice::taken() const {
  const std::lock_guard lock(mutex_);
  ByteCount sum;
  for (const Block& block : pool_) sum += ByteCount(block.used);
  return sum;
}

void CudaDevice::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kStagingBytes) {
    const auto part = static_cast<size_t>(std::min(kStagingBytes, bytes - done));
    Staging& staging = staging_[next_staging_];
    next_staging_ = (next_staging_ + 1) % staging_.size();
    check_cuda(cudaEventSynchronize(staging.copied), "upload");
    std::memcpy(staging.memory, from + done, part);
    check_cuda(cudaMemcpyAsync(to + done, staging.memory, part, cudaMemcpyHostToDevice, stream_), "upload");
    check_cuda(cudaEventRecord(staging.copied, stream_), "upload");
  }
}

void CudaDevice::download(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "download");
  }
  check_cuda(cudaStreamSynchronize(stream_), "download");
}

std::byte* CudaDevice::take_host(ByteCount bytes) {
  std::byte* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, static_cast<size_t>(bytes.value)), "pinned memory");
  const std::lock_guard lock(mutex_);
  host_memory_.push_back(memory);
  return memory;
}

void CudaDevice::post(std::byte* to, const std::byte* from, int64_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "post");
}

void CudaDevice::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_), "copy");
}

void CudaDevice::fill_random(std::byte* to, int64_t bytes, uint32_t keep, uint32_t set) {
  constexpr int kThreads = 256;
  const int64_t words = (bytes + 3) / 4;
  if (words == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((words + kThreads - 1) / kThreads, 4096));
  fill_kernel<<<blocks, kThreads, 0, stream_>>>(reinterpret_cast<uint32_t*>(to), words, keep, set);
  check_cuda(cudaGetLastError(), "fill");
}

std::unique_ptr<DeviceGraph> CudaDevice::record(const std::function<void()>& work) {
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    // The stream leaves the capture mode; what was recorded is dropped.
    (void)cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
  return std::make_unique<CudaGraph>(graph, stream_);
}

}  // namespace weft
