// Where the tensors of a stage lie and its operators run: host memory, or the memory and one queue of work of a GPU.
//
// Memory is taken from a pool that the stage plans ahead (reserve) and lives as long as the device: addresses stay fixed, so
// that recorded work can be run again. Work on a GPU runs in the order in which it was given; only download() waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/units.h"
#include "tensor/tensor.h"

namespace weft {

// Recorded work of a device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;  // does not wait
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual bool is_host() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;  // "NVIDIA H200"

  // Plans the pool: take() may give out about `bytes` more. Throws unavailable naming wanted and free memory. Host memory has
  // no pool: it grows.
  virtual void reserve(ByteCount bytes) = 0;
  // Memory of undefined content, aligned to 256 bytes (host: 64). Throws unavailable when the pool is spent. Any thread.
  [[nodiscard]] virtual std::byte* take(ByteCount bytes) = 0;

  [[nodiscard]] virtual ByteCount taken() const = 0;  // so far

  // Host to device. `from` may be changed after the call.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Device to host. Waits for all work before it.
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Memory of the host that the device reaches, for post(); lives as long as the device.
  [[nodiscard]] virtual std::byte* take_host(ByteCount bytes) = 0;
  // Device to such memory, without waiting: it is there when a later download() returns. May be recorded.
  virtual void post(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Within the device.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Repeatable bytes for weights that stand in for real ones: 32-bit words (random & keep) | set. GPU only; `bytes` is rounded
  // up to whole words, which take() has room for.
  virtual void fill_random(std::byte* to, int64_t bytes, uint32_t keep, uint32_t set) = 0;

  // Records the operators and copies that `work` issues, without running them. GPU only; `work` must not upload or download.
  [[nodiscard]] virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) = 0;

  // A tensor of the host with the values of `view`, which lies on this device.
  [[nodiscard]] Tensor fetch(const TensorView& view);
};

class HostDevice final : public Device {
 public:
  [[nodiscard]] bool is_host() const override { return true; }
  [[nodiscard]] std::string name() const override { return "host"; }
  void reserve(ByteCount) override {}
  [[nodiscard]] std::byte* take(ByteCount bytes) override;
  [[nodiscard]] ByteCount taken() const override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] std::byte* take_host(ByteCount bytes) override { return take(bytes); }
  void post(std::byte* to, const std::byte* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill_random(std::byte* to, int64_t bytes, uint32_t keep, uint32_t set) override;
  [[nodiscard]] std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override;

 private:
  mutable std::mutex mutex_;
  std::vector<Tensor> memory_;  // guarded by mutex_
};

// The first GPU. Throws unavailable naming what is missing: a build with CUDA, a driver, a GPU.
[[nodiscard]] std::shared_ptr<Device> open_cuda_device();

}  // namespace weft
