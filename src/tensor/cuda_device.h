// One GPU: a pool of its memory, a stream, and staging buffers of pinned host memory. Only in builds with CUDA.
#pragma once

#include <array>
#include <cuda_runtime.h>
#include <string_view>

#include "tensor/device.h"

namespace weft {

// Throws unavailable (out of memory) or internal, naming what was tried and CUDA's words.
void check_cuda(cudaError_t status, std::string_view what);

class CudaDevice final : public Device {
 public:
  CudaDevice();
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] std::string name() const override;
  void reserve(ByteCount bytes) override;
  [[nodiscard]] std::byte* take(ByteCount bytes) override;
  [[nodiscard]] ByteCount taken() const override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] std::byte* take_host(ByteCount bytes) override;
  void post(std::byte* to, const std::byte* from, int64_t bytes) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill_random(std::byte* to, int64_t bytes, uint32_t keep, uint32_t set) override;
  [[nodiscard]] std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }

 private:
  // A buffer that uploads pass through, so that they run beside the host's work.
  struct Staging {
    std::byte* memory = nullptr;   // pinned
    cudaEvent_t copied = nullptr;  // when its last upload has left it
  };

  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0;
  std::array<Staging, 2> staging_;
  size_t next_staging_ = 0;

  mutable std::mutex mutex_;
  struct Block {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    int64_t used = 0;
  };
  std::vector<Block> pool_;              // guarded by mutex_; one for each reserve()
  std::vector<std::byte*> host_memory_;  // guarded by mutex_; pinned
};

}  // namespace weft
