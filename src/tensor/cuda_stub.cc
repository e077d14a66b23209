// Stands in for cuda_device.cu in a build without CUDA.
#include "tensor/built_with_cuda.h"
#include "tensor/device.h"

namespace weft {

std::shared_ptr<Device> open_cuda_device() {
  fail(ErrorKind::unavailable, "cuda", "wanted a build with CUDA (cmake -DWEFT_CUDA=ON, needs nvcc), found one without");
}

bool built_with_cuda() { return false; }

}  // namespace weft
