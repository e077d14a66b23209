#include "tensor/device.h"

#include <cstring>

namespace weft {

Tensor Device::fetch(const TensorView& view) {
  Tensor host = Tensor::uninitialized(view.dtype, view.shape);
  download(host.data(), view.data, view.bytes());
  return host;
}

std::byte* HostDevice::take(ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  return memory_.emplace_back(Tensor::uninitialized(DType::u8, {bytes.value})).data();
}

ByteCount HostDevice::taken() const {
  const std::lock_guard lock(mutex_);
  ByteCount sum;
  for (const Tensor& tensor : memory_) sum += ByteCount(tensor.bytes());
  return sum;
}

void HostDevice::upload(std::byte* to, const std::byte* from, int64_t bytes) { copy(to, from, bytes); }
void HostDevice::download(std::byte* to, const std::byte* from, int64_t bytes) { copy(to, from, bytes); }
void HostDevice::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void HostDevice::fill_random(std::byte* /*to*/, int64_t /*bytes*/, uint32_t /*keep*/, uint32_t /*set*/) {
  fail(ErrorKind::internal, "device", "wanted a GPU to make weights on, found host memory");
}

std::unique_ptr<DeviceGraph> HostDevice::record(const std::function<void()>& /*work*/) {
  fail(ErrorKind::internal, "device", "wanted a GPU to record work of, found host memory");
}

}  // namespace weft
